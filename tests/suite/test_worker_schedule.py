"""Which file a free worker takes."""

from __future__ import annotations

from support.durations import Duration
from support.worker_schedule import choose

COMPUTES = Duration(wall_s=100, cpu_s=100)
WAITS = Duration(wall_s=60, cpu_s=6)
WAITS_SHORTLY = Duration(wall_s=20, cpu_s=2)


def test_the_longest_file_is_first() -> None:
    assert choose({"shortly": WAITS_SHORTLY, "computes": COMPUTES, "waits": WAITS}, 0, 2) == "computes"


def test_a_file_that_computes_waits_until_a_core_is_free() -> None:
    waiting = {"shortly": WAITS_SHORTLY, "computes": COMPUTES, "waits": WAITS}
    assert choose(waiting, 1.5, 2) == "waits"
    assert choose(waiting, 1.0, 2) == "computes"


def test_no_worker_idles_when_nothing_fits() -> None:
    assert choose({"computes": COMPUTES, "shortly": WAITS_SHORTLY}, 2.5, 2) == "shortly"
    assert choose({"computes": COMPUTES}, 2.5, 2) == "computes"
