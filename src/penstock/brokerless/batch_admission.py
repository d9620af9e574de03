"""What a store checks before it takes a batch, and what the headers of its messages ask for. Pure."""

from __future__ import annotations

from penstock.brokerless.delay_request import delay_of
from penstock.brokerless.record_codec import size_of
from penstock.brokerless.store import SendBatch, StoreRefusedError
from penstock.brokerless.topic_entries import TopicEntry
from penstock.delay.delay_headers import DelayRequest


def delay_requests(number: int, batch: SendBatch, entry: TopicEntry, now_ms: int) -> list[DelayRequest | None]:
    """What each message asks for; None for one that is to be appended now.

    Raises `StoreRefusedError`, which says at which place of the batch (of this number) a message is refused.
    """
    topic, partition = batch.topic_partition
    if entry.view_of is not None:
        raise StoreRefusedError(f"{topic} is a view and takes no messages; nothing was stored")
    if partition >= entry.partitions:
        raise StoreRefusedError(f"topic {topic} has no partition {partition}: it has {entry.partitions}")
    rules, most = entry.delay_rules, entry.max_message_bytes
    found: list[DelayRequest | None] = []
    for place, message in enumerate(batch.messages):
        if (size := size_of(message)) > most:
            raise StoreRefusedError(
                f"a message of {size} bytes is larger than {most}, the max.message.bytes of {topic}; it was not stored",
                place=(number, place),
            )
        try:
            found.append(delay_of(message, now_ms, rules))
        except StoreRefusedError as error:
            raise StoreRefusedError(str(error), place=(number, place)) from None
    return found
