"""Commits without metadata are read from their bytes, and say the same as the described decoder."""

from __future__ import annotations

import uuid
from random import Random

import pytest

from penstock.errors import ProtocolError
from penstock.protocol import apis, packed_commit
from penstock.protocol.decoding import NO_LIMIT, decode
from penstock.protocol.encoding import encode
from penstock.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

VERSIONS = (8, 9, 10)


def request(random: Random, version: int, metadata: tuple[str | None, ...] = ("", None)) -> OffsetCommitRequest:
    def topic() -> OffsetCommitRequestTopic:
        name = {"topic_id": uuid.UUID(int=random.getrandbits(128))} if version >= 10 else {"name": "tö" * 70}
        return OffsetCommitRequestTopic(
            **name,
            partitions=tuple(
                OffsetCommitRequestPartition(
                    partition_index=random.randrange(-(1 << 31), 1 << 31),
                    committed_offset=random.randrange(-(1 << 63), 1 << 63),
                    committed_leader_epoch=random.randrange(-1, 1 << 31),
                    committed_metadata=random.choice(metadata),
                )
                for _ in range(random.choice((0, 1, 2, 3, 200)))
            ),
        )

    return OffsetCommitRequest(
        group_id="gröup",
        generation_id_or_member_epoch=random.randrange(-1, 100),
        member_id=random.choice(("", "member", "m" * 300)),
        group_instance_id=random.choice((None, "", "instance")),
        topics=tuple(topic() for _ in range(random.randrange(4))),
    )


def described(read: OffsetCommitRequest) -> list[object]:
    return [
        read.group_id,
        read.generation_id_or_member_epoch,
        read.member_id,
        read.group_instance_id,
        [
            (
                topic.name,
                topic.topic_id,
                [
                    (each.partition_index, each.committed_offset, each.committed_leader_epoch)
                    for each in topic.partitions
                ],
                [each.committed_metadata or "" for each in topic.partitions],
            )
            for topic in read.topics
        ],
    ]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("seed", range(20))
def test_it_says_what_the_described_decoder_says(version: int, seed: int) -> None:
    data = encode(request(Random(seed), version), version)
    packed = packed_commit.decode(version, memoryview(b"head" + data), 4, NO_LIMIT)
    assert packed is not None
    assert described(packed) == described(decode(OffsetCommitRequest, version, data)[0])


@pytest.mark.parametrize("version", VERSIONS)
def test_metadata_is_left_to_the_described_decoder(version: int) -> None:
    made = request(Random(5), version, metadata=("", "x"))
    data = encode(made, version)
    assert packed_commit.decode(version, memoryview(data), 0, NO_LIMIT) is None
    assert described(apis.decode_request(apis.OFFSET_COMMIT, version, memoryview(data))) == described(made)


@pytest.mark.parametrize("version", VERSIONS)
def test_request_that_is_cut_short_or_changed_is_read_or_refused_as_by_the_described_decoder(version: int) -> None:
    random = Random(version)
    data = encode(request(random, version), version)[:400]
    spoiled = [data[:size] for size in range(len(data))]
    for _ in range(2000):
        changed = bytearray(data)
        changed[random.randrange(len(data))] = random.randrange(256)
        spoiled.append(bytes(changed))
    for each in spoiled:
        assert outcome(each, version, is_packed=True) == outcome(each, version, is_packed=False)


def outcome(data: bytes, version: int, *, is_packed: bool) -> object:
    try:
        if is_packed:
            return described(apis.decode_request(apis.OFFSET_COMMIT, version, memoryview(data), 0, 1000))
        return described(decode(OffsetCommitRequest, version, data, 0, 1000)[0])
    except ProtocolError:
        return "refused"
