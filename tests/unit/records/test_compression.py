"""Every codec packs and unpacks, in every framing that clients use, and no block can take more memory than it may."""

from __future__ import annotations

import gzip
import os
import struct
import tracemalloc
import zlib

import pytest
from cramjam import snappy, zstd

from penstock.errors import ApiError, Code
from penstock.records.compression import Codec, CorruptBlockError, compress, decompress

TEXT = b"".join(b"line %d of a text that repeats itself\n" % number for number in range(2000))
PACKED = [codec for codec in Codec if codec != Codec.NONE]


def xerial(*blocks: bytes) -> bytes:
    """The framing of the Java client: a header, then each block behind its length."""
    framed = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    for block in blocks:
        packed = bytes(snappy.compress_raw(block))
        framed += struct.pack(">i", len(packed)) + packed
    return framed


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("block", [b"", b"x", TEXT, os.urandom(100_000)], ids=["empty", "one", "text", "random"])
def test_what_was_packed_unpacks_to_the_same(codec: Codec, block: bytes) -> None:
    assert bytes(decompress(codec, compress(codec, block))) == block
    assert bytes(decompress(codec, memoryview(bytes(compress(codec, memoryview(block)))))) == block


@pytest.mark.parametrize("codec", PACKED)
def test_text_gets_smaller(codec: Codec) -> None:
    assert len(compress(codec, TEXT)) < len(TEXT) / 3


def test_snappy_of_the_java_client_is_unpacked() -> None:
    assert decompress(Codec.SNAPPY, xerial(TEXT[:32768], TEXT[32768:])) == TEXT
    assert decompress(Codec.SNAPPY, xerial()) == b""


@pytest.mark.parametrize("harm", ["cut", "long-block", "negative-block", "no-header"])
def test_broken_snappy_framing_is_corrupt(harm: str) -> None:
    whole = xerial(TEXT)
    broken = {
        "cut": whole[:-1],
        "long-block": whole[:16] + struct.pack(">i", 1 << 30) + whole[20:],
        "negative-block": whole[:16] + struct.pack(">i", -1) + whole[20:],
        "no-header": whole[:10],
    }[harm]
    with pytest.raises(CorruptBlockError):
        decompress(Codec.SNAPPY, broken)


@pytest.mark.parametrize("codec", PACKED)
def test_a_block_that_is_cut_is_corrupt(codec: Codec) -> None:
    packed = bytes(compress(codec, TEXT))
    for size in (1, len(packed) // 2, len(packed) - 1):
        with pytest.raises(ApiError) as caught:
            decompress(codec, packed[:size])
        assert caught.value.code == Code.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", PACKED)
def test_a_block_larger_than_the_limit_is_refused(codec: Codec) -> None:
    packed = compress(codec, TEXT)
    assert bytes(decompress(codec, packed, limit=len(TEXT) + 1)) == TEXT
    with pytest.raises(CorruptBlockError):
        decompress(codec, packed, limit=len(TEXT) - 1)


@pytest.mark.parametrize(
    ("codec", "bomb"),
    [
        (Codec.GZIP, gzip.compress(bytes(50_000_000))),
        (Codec.ZSTD, bytes(zstd.compress(bytes(50_000_000)))),
        (Codec.LZ4, bytes(compress(Codec.LZ4, bytes(50_000_000)))),
        (Codec.SNAPPY, b"\xff\xff\xff\x7f" + b"\x00" * 20),
    ],
    ids=["gzip", "zstd", "lz4", "snappy"],
)
def test_a_bomb_does_not_fill_the_memory(codec: Codec, bomb: bytes) -> None:
    limit = 1_000_000
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBlockError):
            decompress(codec, bomb, limit)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * limit + len(bomb)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_damaged_block_does_not_fill_the_memory(codec: Codec) -> None:
    packed = bytearray(compress(codec, TEXT))
    packed[0] ^= 0xFF
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBlockError):
            decompress(codec, bytes(packed))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_unsupported(codec: int) -> None:
    for call in (decompress, compress):
        with pytest.raises(ApiError) as caught:
            call(codec, b"x")
        assert caught.value.code == Code.UNSUPPORTED_COMPRESSION_TYPE


def test_gzip_without_its_end_is_corrupt() -> None:
    packer = zlib.compressobj(wbits=31)
    with pytest.raises(CorruptBlockError):
        decompress(Codec.GZIP, packer.compress(TEXT) + packer.flush(zlib.Z_SYNC_FLUSH))
