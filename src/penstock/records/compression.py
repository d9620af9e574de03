"""The five codecs of the Kafka record batch, by their number in the batch's attributes.

Snappy comes in two framings: the raw block, and the one of the Java client (`\\x82SNAPPY\\x00`, blocks with a length in
front). LZ4 is the standard frame. Every decompression is bounded: a small batch that claims to be huge is refused.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from enum import IntEnum

from cramjam import DecompressionError, lz4, snappy, zstd

from penstock.errors import ApiError, Code


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


CODEC_BY_SETTING = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
"""The values of the topic setting `compression.type`, except `producer` (leave as it is)."""

MAX_DECOMPRESSED_BYTES = 256 * 1024 * 1024

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = struct.Struct(">8sii")
_U32 = struct.Struct(">I")
_SNAPPY_MAX_RATIO = 64
"""No element of the format makes more than 64 bytes: a larger claim is a lie, told before any memory is taken."""

_FIRST_ROOM_BYTES = 64 * 1024
_OUT_OF_ROOM = "failed to write whole buffer"
_ROOM_GROWTH = 8
"""Neither LZ4 nor Zstandard says beforehand how much it unpacks to; most batches fit at the first try."""


class CorruptBlockError(ApiError):
    """Compressed bytes that do not decompress."""

    def __init__(self, reason: str, code: Code = Code.CORRUPT_MESSAGE) -> None:
        super().__init__(code, reason)


class UnpackedTooLargeError(CorruptBlockError):
    """Compressed bytes that decompress to more than is allowed. A producer that gets this error splits its batch."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the records take more than {limit} bytes when decompressed", Code.MESSAGE_TOO_LARGE)


def decompress(codec: int, block: memoryview | bytes, limit: int = MAX_DECOMPRESSED_BYTES) -> bytes | memoryview:
    """The records inside `block`, at most `limit` bytes of them."""
    if codec == Codec.NONE:
        return block
    try:
        if codec == Codec.GZIP:
            return _gunzip(block, limit)
        if codec == Codec.SNAPPY:
            return _unsnappy(bytes(block), limit)
        if codec == Codec.LZ4:
            return _unpack(lz4.decompress_into, block, limit)
        if codec == Codec.ZSTD:
            return _unpack(zstd.decompress_into, block, limit)
    except (zlib.error, struct.error, DecompressionError, OSError) as error:
        raise CorruptBlockError(f"the {Codec(codec).name.lower()} block does not decompress: {error}") from error
    raise ApiError(Code.UNSUPPORTED_COMPRESSION_TYPE, f"there is no compression codec {codec}")


def compress(codec: int, block: bytes | memoryview) -> bytes | memoryview:
    """`block` in the given codec, at its usual level."""
    if codec == Codec.NONE:
        return block
    if codec == Codec.GZIP:
        packer = zlib.compressobj(wbits=31)
        return packer.compress(block) + packer.flush()
    if codec == Codec.SNAPPY:
        return bytes(snappy.compress_raw(bytes(block)))
    if codec == Codec.LZ4:
        return bytes(lz4.compress(bytes(block)))
    if codec == Codec.ZSTD:
        return bytes(zstd.compress(bytes(block)))
    raise ApiError(Code.UNSUPPORTED_COMPRESSION_TYPE, f"there is no compression codec {codec}")


def _gunzip(block: memoryview | bytes, limit: int) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    out = unpacker.decompress(block, limit)
    if not unpacker.eof:
        # At the limit exactly, the end of the stream may still have to be read.
        if unpacker.decompress(unpacker.unconsumed_tail, 1):
            raise UnpackedTooLargeError(limit)
        if not unpacker.eof:
            raise CorruptBlockError("the gzip block ends early")
    return out


def _unsnappy(block: bytes, limit: int) -> bytes:
    if not block.startswith(_XERIAL_MAGIC):
        return _unsnappy_block(block, limit)
    _XERIAL_HEADER.unpack_from(block, 0)
    position, out, total = _XERIAL_HEADER.size, [], 0
    while position < len(block):
        (size,) = _U32.unpack_from(block, position)
        position += 4
        if size > len(block) - position:
            raise CorruptBlockError("a snappy block ends early")
        part = _unsnappy_block(block[position : position + size], limit - total)
        out.append(part)
        total += len(part)
        position += size
    return b"".join(out)


def _unsnappy_block(block: bytes, limit: int) -> bytes:
    claimed, shift = 0, 0
    for byte in block[:5]:
        claimed |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
    if claimed > len(block) * _SNAPPY_MAX_RATIO:
        raise CorruptBlockError(f"the snappy block of {len(block)} bytes claims {claimed}")
    if claimed > limit:
        raise UnpackedTooLargeError(limit)
    return bytes(snappy.decompress_raw(block))


def _unpack(into: Callable[[bytes, bytearray], int], block: memoryview | bytes, limit: int) -> memoryview:
    """Unpacks into more and more room, so that a block that grows without end is stopped at the limit."""
    packed = bytes(block)
    room = min(limit, max(_FIRST_ROOM_BYTES, len(packed) * _ROOM_GROWTH))
    while True:
        out = bytearray(room)
        try:
            return memoryview(out)[: into(packed, out)]
        except DecompressionError as error:
            # A damaged block must not be given more and more room: only one that ran out of it is tried again.
            if _OUT_OF_ROOM not in str(error):
                raise
            if room == limit:
                raise UnpackedTooLargeError(limit) from error
            room = min(limit, room * _ROOM_GROWTH)
