"""The partitions that a topic no longer writes to, each with the one that takes its place.

    penstock.partitions.retired = 3:0,4:1

says that what is produced to partition 3 is appended to partition 0, and what is produced to 4 to 1. A pair stays when
the retired partition itself is gone: producers that have not looked at the metadata since still send to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from penstock.errors import ConfigError

RETIRED_SETTING = "penstock.partitions.retired"

_INDEX_DIGITS = 6
"""No topic has more partitions; it also keeps the names of stand-ins (`ids.stand_in_id`) within 63 bits."""


def parse_retired(items: Iterable[str]) -> Mapping[int, int]:
    """The successor of each retired partition; ConfigError if that cannot be."""
    successors: dict[int, int] = {}
    for item in items:
        retired, colon, successor = item.partition(":")
        if not (colon and _is_index(retired) and _is_index(successor)):
            raise _refusal(item, "RETIRED:SUCCESSOR pairs of partitions such as 3:0,4:1")
        if int(retired) in successors:
            raise _refusal(item, "one successor a partition")
        successors[int(retired)] = int(successor)
    for retired_index, successor_index in successors.items():
        if successor_index in successors:
            raise _refusal(f"{retired_index}:{successor_index}", "a successor that is not retired itself")
    return successors


def spell_retired(successors: Mapping[int, int]) -> str:
    """The text that `parse_retired` reads, item by item."""
    return ",".join(f"{retired}:{successors[retired]}" for retired in sorted(successors))


def check_tail(count: int, retired: Collection[int]) -> None:
    """ConfigError unless the retired partitions are the last ones of a topic of `count`, and not all."""
    if len(retired) >= count:
        raise ConfigError("one partition has to remain")
    if sorted(retired) != list(range(count - len(retired), count)):
        listed = ", ".join(map(str, sorted(retired)))
        raise ConfigError(
            f"only the last partitions can be retired, and {listed} of 0 to {count - 1} are not: "
            "clients number partitions without gaps"
        )


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _INDEX_DIGITS


def _refusal(item: str, allowed: str) -> ConfigError:
    return ConfigError(f"{RETIRED_SETTING} = {item!r}: allowed is {allowed}")
