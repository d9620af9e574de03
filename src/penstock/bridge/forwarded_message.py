"""What a forwarded message, and a dead letter of the bridge, look like. Pure."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode

from penstock.sdk.headers import DELIVER_AT, ERROR, FAILING, ORIGIN, TIMER_ID, TIMING, Origin, error_text, without
from penstock.sdk.hooks.delay_bridge import TARGET, TARGET_PARTITION
from penstock.sdk.ports import Headers, Outgoing, Received

BRIDGE_ORIGIN = "penstock-bridge-origin"
"""On a forwarded message: topic/partition/offset of the message in the delay topic; the same in every repeat."""
BRIDGE_TIMER_ID = "penstock-bridge-timer-id"
"""Its timer id. Under its own name a Penstock broker would take it for a new timer."""
SUFFIX = ".delay"
"""Of a delay topic whose messages go to the topic with the name before it."""

_PLACING = frozenset({TARGET, TARGET_PARTITION})


class TargetError(Exception):
    """A message that does not say where it goes."""


def target_of(headers: Headers, topic: str, default: str | None) -> tuple[str, int | None]:
    """Topic and partition that a message of the delay topic goes to: by its headers, the bridge's default, or the name
    of the delay topic.
    """
    named = _only(headers, TARGET)
    partition = _only(headers, TARGET_PARTITION)
    if partition is not None and not (partition.isascii() and partition.isdigit() and len(partition) < 10):
        raise TargetError(f"the header {TARGET_PARTITION} is {partition!r}: it takes the number of a partition")
    number = None if partition is None else int(partition)
    if named is not None:
        if not 1 <= len(named) <= 249:
            raise TargetError(f"the header {TARGET} has {len(named)} characters: a topic has 1 to 249")
        return named, number
    if default is not None:
        return default, number
    if topic.endswith(SUFFIX) and len(topic) > len(SUFFIX):
        return topic.removesuffix(SUFFIX), number
    raise TargetError(
        f"the message has no header {TARGET}, the bridge has no --target, and {topic} does not end in {SUFFIX}"
    )


def forwarded_headers(received: Received) -> Headers:
    """The headers of the copy, without the time at which it was due."""
    timer_id = tuple((BRIDGE_TIMER_ID, value) for name, value in received.headers if name == TIMER_ID)
    place = f"{received.topic}/{received.partition}/{received.offset}"
    return (*without(received.headers, TIMING | _PLACING), *timer_id, (BRIDGE_ORIGIN, place.encode()))


def with_due_time(headers: Headers, deliver_at_ms: int | None) -> Headers:
    return headers if deliver_at_ms is None else (*headers, (DELIVER_AT, str(deliver_at_ms).encode()))


def dead_letter(received: Received, topic: str, reason: str) -> Outgoing:
    """A message that was not delayed, as `penstock deadletter` shows it. Its timing headers would delay it anew."""
    origin = Origin(received.topic, received.partition, received.offset, received.timestamp_ms)
    headers = without(received.headers, TIMING | FAILING)
    return Outgoing(
        topic=topic,
        value=received.value,
        key=received.key,
        headers=(*headers, (ORIGIN, str(origin).encode()), (ERROR, error_text(reason))),
    )


def refused_forward(outgoing: Outgoing, topic: str, reason: str) -> Outgoing:
    """The dead letter of a message that was due, and that its target has refused."""
    place = dict(outgoing.headers).get(BRIDGE_ORIGIN) or b""
    headers = without(outgoing.headers, TIMING | FAILING | {BRIDGE_ORIGIN})
    marks = ((TARGET, outgoing.topic.encode()), (ORIGIN, place + b"/"), (ERROR, error_text(reason)))
    return Outgoing(topic=topic, value=outgoing.value, key=outgoing.key, headers=(*headers, *marks))


def headers_as_text(headers: Headers) -> str | None:
    """For a column: JSON, with what is not text in base64; None without headers."""
    return json.dumps([[name, _as_json(value)] for name, value in headers], ensure_ascii=False) if headers else None


def headers_from_text(text: str | None) -> Headers:
    return tuple((name, _from_json(value)) for name, value in json.loads(text)) if text else ()


def _as_json(value: bytes | None) -> object:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}


def _from_json(value: object) -> bytes | None:
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else b64decode(value["base64"])  # type: ignore[index]


def _only(headers: Headers, name: str) -> str | None:
    values = [value for each, value in headers if each == name]
    if not values:
        return None
    if len(values) > 1:
        raise TargetError(f"the header {name} is there {len(values)} times")
    try:
        return (values[0] or b"").decode()
    except UnicodeDecodeError:
        raise TargetError(f"the header {name} is not UTF-8") from None
