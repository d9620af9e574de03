"""The C library inside the confluent-kafka wheel, called without the Python layer above it.

confluent-kafka builds a Python object a message, which caps a client near a million messages a second; here a
message array is prepared once and handed over in one call, so that the broker and not the client is measured.
Only the functions the benchmark calls are declared.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Mapping
from ctypes import CFUNCTYPE, POINTER, Structure, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from bench.client.driver import DriverError

PRODUCER = 0
CONSUMER = 1
MSG_F_COPY = 2
MSG_F_BLOCK = 4
OFFSET_BEGINNING = -2
_CONF_OK = 0

DeliveryCallback = CFUNCTYPE(None, c_void_p, c_void_p, c_void_p)
ErrorCallback = CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_void_p)


class Message(Structure):
    """rd_kafka_message_t."""

    _fields_ = (
        ("err", c_int),
        ("rkt", c_void_p),
        ("partition", c_int32),
        ("payload", c_void_p),
        ("len", c_size_t),
        ("key", c_void_p),
        ("key_len", c_size_t),
        ("offset", c_int64),
        ("private", c_void_p),
    )


class Position(Structure):
    """rd_kafka_topic_partition_t."""

    _fields_ = (
        ("topic", c_char_p),
        ("partition", c_int32),
        ("offset", c_int64),
        ("metadata", c_void_p),
        ("metadata_size", c_size_t),
        ("opaque", c_void_p),
        ("err", c_int),
        ("private", c_void_p),
    )


class PositionList(Structure):
    """rd_kafka_topic_partition_list_t."""

    _fields_ = (("cnt", c_int), ("size", c_int), ("elems", POINTER(Position)))


_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "rd_kafka_version_str": (c_char_p, ()),
    "rd_kafka_err2str": (c_char_p, (c_int,)),
    "rd_kafka_last_error": (c_int, ()),
    "rd_kafka_conf_new": (c_void_p, ()),
    "rd_kafka_conf_set": (c_int, (c_void_p, c_char_p, c_char_p, c_char_p, c_size_t)),
    "rd_kafka_conf_set_dr_msg_cb": (None, (c_void_p, DeliveryCallback)),
    "rd_kafka_conf_set_error_cb": (None, (c_void_p, ErrorCallback)),
    "rd_kafka_new": (c_void_p, (c_int, c_void_p, c_char_p, c_size_t)),
    "rd_kafka_destroy": (None, (c_void_p,)),
    "rd_kafka_topic_new": (c_void_p, (c_void_p, c_char_p, c_void_p)),
    "rd_kafka_topic_destroy": (None, (c_void_p,)),
    "rd_kafka_flush": (c_int, (c_void_p, c_int)),
    "rd_kafka_produce": (
        c_int,
        (c_void_p, c_int32, c_int, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p),
    ),
    "rd_kafka_produce_batch": (c_int, (c_void_p, c_int32, c_int, POINTER(Message), c_int)),
    "rd_kafka_queue_new": (c_void_p, (c_void_p,)),
    "rd_kafka_queue_destroy": (None, (c_void_p,)),
    "rd_kafka_consume_start_queue": (c_int, (c_void_p, c_int32, c_int64, c_void_p)),
    "rd_kafka_consume_stop": (c_int, (c_void_p, c_int32)),
    "rd_kafka_consume_queue": (POINTER(Message), (c_void_p, c_int)),
    "rd_kafka_consume_callback_queue": (c_int, (c_void_p, c_int, c_void_p, c_void_p)),
    "rd_kafka_message_destroy": (None, (POINTER(Message),)),
    "rd_kafka_topic_partition_list_new": (POINTER(PositionList), (c_int,)),
    "rd_kafka_topic_partition_list_add": (POINTER(Position), (POINTER(PositionList), c_char_p, c_int32)),
    "rd_kafka_topic_partition_list_destroy": (None, (POINTER(PositionList),)),
    "rd_kafka_position": (c_int, (c_void_p, POINTER(PositionList))),
    "rd_kafka_query_watermark_offsets": (
        c_int,
        (c_void_p, c_char_p, c_int32, POINTER(c_int64), POINTER(c_int64), c_int),
    ),
}


@cache
def load() -> ctypes.CDLL:
    """Load the library once a process."""
    spec = importlib.util.find_spec("confluent_kafka")
    if spec is None or spec.origin is None:
        raise DriverError("confluent-kafka is not installed")
    bundled = Path(spec.origin).parent.parent / "confluent_kafka.libs"
    found = sorted(bundled.glob("librdkafka*.so*"))
    if not found:
        raise DriverError("the confluent-kafka wheel brings no librdkafka (Linux wheels do)")
    library = ctypes.CDLL(str(found[0]))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


def version() -> str:
    text: bytes = load().rd_kafka_version_str()
    return text.decode()


class Handle:
    """One rd_kafka_t with its settings; counts what the library says went wrong."""

    def __init__(self, kind: int, settings: Mapping[str, str]) -> None:
        self.lib = load()
        self.failed = 0
        self.last_error = ""
        # Callbacks are kept on the object: the library holds bare pointers to them.
        self._on_delivery = DeliveryCallback(self._delivered)
        self._on_error = ErrorCallback(self._error)
        conf = self.lib.rd_kafka_conf_new()
        reason = ctypes.create_string_buffer(512)
        for key, value in settings.items():
            if self.lib.rd_kafka_conf_set(conf, key.encode(), value.encode(), reason, 512) != _CONF_OK:
                raise DriverError(reason.value.decode())
        if kind == PRODUCER:
            self.lib.rd_kafka_conf_set_dr_msg_cb(conf, self._on_delivery)
        self.lib.rd_kafka_conf_set_error_cb(conf, self._on_error)
        self.pointer: int | None = self.lib.rd_kafka_new(kind, conf, reason, 512)
        if not self.pointer:
            raise DriverError(reason.value.decode())

    def _delivered(self, _client: int | None, message: int | None, _opaque: int | None) -> None:
        # With delivery.report.only.error the library calls this for lost messages alone.
        if message and (code := Message.from_address(message).err):
            self.failed += 1
            self.last_error = self.describe(code)

    def _error(self, _client: int | None, _code: int, reason: bytes | None, _opaque: int | None) -> None:
        self.last_error = (reason or b"").decode(errors="replace")

    def describe(self, code: int) -> str:
        text: bytes = self.lib.rd_kafka_err2str(code)
        return text.decode()

    def topic(self, name: str) -> int:
        pointer: int | None = self.lib.rd_kafka_topic_new(self.pointer, name.encode(), None)
        if not pointer:
            raise DriverError(self.describe(self.lib.rd_kafka_last_error()))
        return pointer

    def watermarks(self, topic: str, partition: int, timeout_ms: int = 10_000) -> tuple[int, int]:
        """First and next offset of a partition."""
        low, high = c_int64(), c_int64()
        code = self.lib.rd_kafka_query_watermark_offsets(
            self.pointer, topic.encode(), partition, byref(low), byref(high), timeout_ms
        )
        if code:
            raise DriverError(self.describe(code))
        return low.value, high.value

    def positions(self, topic: str, partitions: int) -> list[int]:
        """The offset after the last message handed to the application, a partition each."""
        listed = self.lib.rd_kafka_topic_partition_list_new(partitions)
        try:
            for partition in range(partitions):
                self.lib.rd_kafka_topic_partition_list_add(listed, topic.encode(), partition)
            code = self.lib.rd_kafka_position(self.pointer, listed)
            if code:
                raise DriverError(self.describe(code))
            return [listed.contents.elems[index].offset for index in range(partitions)]
        finally:
            self.lib.rd_kafka_topic_partition_list_destroy(listed)

    def close(self) -> None:
        if self.pointer:
            self.lib.rd_kafka_destroy(self.pointer)
            self.pointer = None
