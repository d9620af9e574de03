"""What a bare client says to a Kafka-protocol broker: batches in and out; and the same sizes for a plain server."""

from __future__ import annotations

from dataclasses import replace

from bench.client import wire
from bench.client.bare import Conversation, Talk
from bench.client.payload import random_pool
from bench.servers.plain import introduction

STORED_BATCHES = 16
"""Batches that a partition gets for fetches to go over, again and again: more than a processor caches."""


def batch_of(records: int, record_bytes: int) -> bytes:
    """Random records."""
    pool = random_pool()
    starts = [(index * 7919) % (len(pool) - record_bytes) for index in range(records)]
    return wire.record_batch([pool[start : start + record_bytes] for start in starts])


def produce_talk(topic: str, partitions: int, batch: bytes, in_flight: int) -> Talk:
    """One batch a request, the partitions in turn."""
    return Talk(
        frames=[wire.frame_of(*wire.produce_as_clients_do(topic, index, batch)) for index in range(partitions)],
        answer_bytes=wire.produce_answer_bytes(topic),
        in_flight=in_flight,
        error_at=wire.produce_error_at(topic),
    )


def fetch_talk(topic: str, partitions: int, batch: bytes, records: int, stored: int, in_flight: int) -> Talk:
    """One batch a request, the partitions in turn, each of which has `stored` of these batches and begins at 0."""
    return Talk(
        frames=[
            wire.frame_of(*wire.fetch_request(topic, index, number * records, len(batch)))
            for number in range(stored)
            for index in range(partitions)
        ],
        answer_bytes=wire.fetch_answer_bytes(topic, len(batch)),
        in_flight=in_flight,
    )


def plain_talk(talk: Talk, *, works: bool = False) -> Talk:
    """The same frames for a plain server, which looks at nothing but their size."""
    hello = introduction(len(talk.frames[0]), talk.answer_bytes, works=works)
    return replace(talk, introduction=hello, error_at=None)


def hold(address: str, talk: Talk, count: int, limit_s: float = float("inf")) -> int:
    """A conversation from its beginning to its end; how many requests were answered."""
    conversation = Conversation(address, talk)
    try:
        return conversation.run(count, limit_s)
    finally:
        conversation.close()
