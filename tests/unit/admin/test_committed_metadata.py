"""What a member has noted with a committed offset, as the library gives it."""

from __future__ import annotations

from types import SimpleNamespace

from penstock.admin.groups import CommittedOffset, _committed
from penstock.ids import TopicPartition


class Noted:
    """A place whose note is no UTF-8: the library fails when it is looked at."""

    topic, partition, offset, error = "orders", 0, 7, None

    @property
    def metadata(self) -> str:
        return b"\xc3(".decode()


def test_a_note_that_is_no_text_does_not_hide_the_offset() -> None:
    told = SimpleNamespace(topic_partitions=[Noted()])
    assert _committed(told) == {TopicPartition("orders", 0): CommittedOffset(7, "")}
