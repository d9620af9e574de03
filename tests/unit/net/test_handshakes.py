"""The bound on TLS handshakes in progress."""

from __future__ import annotations

from functools import partial

from penstock.net.handshakes import Handshakes


class Line:
    """Handshakes that have begun, in order."""

    def __init__(self, limit: int, limit_per_host: int) -> None:
        self.begun: list[str] = []
        self.handshakes = Handshakes(limit, limit_per_host)

    def ask(self, host: str, count: int = 1) -> None:
        for _ in range(count):
            self.handshakes.begin(host, partial(self.begun.append, host))


def test_no_more_than_the_limit_are_in_progress() -> None:
    line = Line(3, 3)
    for host in "abcde":
        line.ask(host)
    assert (line.begun, line.handshakes.waiting) == (["a", "b", "c"], 2)
    line.handshakes.end("b")
    assert line.begun == ["a", "b", "c", "d"]


def test_a_flood_from_one_address_keeps_no_other_waiting() -> None:
    line = Line(4, 2)
    line.ask("flood", 1000)
    line.ask("other")
    assert line.begun == ["flood", "flood", "other"]
    assert (line.handshakes.in_progress, line.handshakes.waiting) == (3, 998)


def test_addresses_take_turns() -> None:
    line = Line(2, 2)
    line.ask("a", 4)
    line.ask("b", 3)
    for ended in range(5):
        line.handshakes.end(line.begun[ended])
    assert "".join(line.begun) == "aaababb"


def test_one_that_has_left_the_line_is_not_begun() -> None:
    line = Line(1, 1)
    line.ask("a")
    begin = partial(line.begun.append, "gone")
    assert not line.handshakes.begin("b", begin)
    line.handshakes.forget("b", begin)
    line.handshakes.end("a")
    assert (line.begun, line.handshakes.waiting, line.handshakes.in_progress) == (["a"], 0, 0)
