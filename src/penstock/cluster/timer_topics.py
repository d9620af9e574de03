"""Timer topics show the delayed records of another topic: `__timers.orders` by due time, `__timer-ids.orders` by id.

Pure. They are in no image and have no log. Every topic has both, with its partitions and leaders, for clients that ask
by name. Their ids follow from the topic's, so every broker knows them. `docs/delay.md` says what is read from them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from penstock.cluster.metadata import MetadataImage, TopicImage
from penstock.ids import TopicId

BY_DUE_TIME = "__timers."
BY_ID = "__timer-ids."
_BEGINNING = "__timer"
_MASKS = {
    BY_DUE_TIME: 0x70656E7374_6F636B5F_74696D657273_00,
    BY_ID: 0x70656E7374_6F636B5F_74696D657273_01,
}
"""What an id of a topic is combined with; twice gives the topic's own again."""


@dataclass(frozen=True, slots=True)
class TimerTopic:
    """One of them."""

    name: str
    base: str
    by_id: bool


def timer_topic(name: str) -> TimerTopic | None:
    """What a name stands for; None if it is that of any other topic."""
    if name.startswith(_BEGINNING):
        for beginning in _MASKS:
            if name.startswith(beginning):
                return TimerTopic(name, name.removeprefix(beginning), beginning == BY_ID)
    return None


def seen(image: MetadataImage, name: str) -> TopicImage | None:
    """The topic of this name as clients see it; None if it is none of these, or shows a topic that is not there."""
    found = timer_topic(name)
    base = None if found is None else image.topics.get(found.base)
    if found is None or base is None or base.view_of is not None or base.is_internal:
        return None
    return replace(base, name=name, id=_combined(base.id, BY_ID if found.by_id else BY_DUE_TIME), is_internal=True)


def name_of(topic_id: TopicId, base_name: Callable[[TopicId], str | None]) -> str | None:
    """The name behind an id, given the names behind those of other topics."""
    for beginning in _MASKS:
        base = base_name(_combined(topic_id, beginning))
        if base is not None:
            return beginning + base
    return None


def _combined(topic_id: TopicId, beginning: str) -> TopicId:
    return TopicId(int=topic_id.int ^ _MASKS[beginning])
