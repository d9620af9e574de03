"""Members of a group without a client: what each reads, and what it knows of its membership."""

from __future__ import annotations

import itertools

from penstock.groups.consumer.assignment import Assignment


class Member:
    """A client: what it reads, and what it knows."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.names = itertools.count()
        self.reads: Assignment = frozenset()
        self.heard_ms = 0
        self.is_in = False

    def drop_out(self) -> None:
        self.reads = frozenset()
        self.is_in = False


class NewMember(Member):
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.member_id = ""
        self.epoch = 0
        self.given: Assignment = frozenset()
        self.is_full = True

    def drop_out(self) -> None:
        super().drop_out()
        self.epoch = 0
        self.given = frozenset()


class ClassicMember(Member):
    def __init__(self, number: int, *, is_cooperative: bool) -> None:
        super().__init__(number)
        self.is_cooperative = is_cooperative
        self.member_id = ""
        self.generation = -1
        self.token: object | None = None
        self.must_join = True
        self.must_sync = False
        self.plan_for: tuple[str, ...] = ()

    def drop_out(self) -> None:
        super().drop_out()
        self.member_id = ""
        self.generation = -1
        self.token = None
        self.must_join, self.must_sync = True, False
