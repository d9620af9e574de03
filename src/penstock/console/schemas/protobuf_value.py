"""Reading one Protobuf message as plain data for JSON, with a set of file descriptors as `protoc` writes it.

The library bounds how deep messages nest. A set has a pool of its own, so that sets do not meet.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from penstock.console.schemas.decode_error import MAX_NAME, DecodeError

_MAX_INDEXES = 20


class ProtobufSchema:
    """The messages that a set of files describes."""

    def __init__(self, text: str, message: str = "") -> None:
        """`text` is a FileDescriptorSet in base64. ValueError if it is none, or has no such message.

        Without `message` the indexes of Confluent's framing choose one of the last file, which `protoc` was called for;
        unframed data is the first message of that file.
        """
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
        from google.protobuf.message import DecodeError as LibraryError

        try:
            given = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(text, validate=True))
        except (binascii.Error, LibraryError, ValueError):
            raise ValueError(
                "it is no FileDescriptorSet in base64; protoc --include_imports --descriptor_set_out=FILE writes one"
            ) from None
        if not given.file:
            raise ValueError("the FileDescriptorSet has no file in it")
        pool = descriptor_pool.DescriptorPool()
        for file in given.file:
            _check_names(file)
            try:
                pool.AddSerializedFile(file.SerializeToString())
            except (TypeError, ValueError, KeyError) as error:
                raise ValueError(f"the file {file.name} of the set cannot be used: {error}") from None
        self._last: Any = pool.FindFileByName(given.file[-1].name)
        self._class_of = message_factory.GetMessageClass
        self._message: Any = None
        if message:
            try:
                self._message = pool.FindMessageTypeByName(message)
            except KeyError:
                raise ValueError(f"the set has no message {message}; it has {', '.join(_messages(given))}") from None
        elif not given.file[-1].message_type:
            raise ValueError(f"the last file, {given.file[-1].name}, has no message")

    def decode(self, data: memoryview, *, is_framed: bool) -> Any:
        """The message that the data is; DecodeError if it is not one."""
        from google.protobuf import json_format
        from google.protobuf.message import DecodeError as LibraryError

        indexes, start = _indexes(data) if is_framed else ((0,), 0)
        described = self._message or self._chosen(indexes)
        try:
            message = self._class_of(described).FromString(bytes(data[start:]))
            return json_format.MessageToDict(
                message, preserving_proto_field_name=True, descriptor_pool=described.file.pool
            )
        except (LibraryError, json_format.Error, TypeError, ValueError, KeyError, RecursionError) as error:
            raise DecodeError(str(error) or type(error).__name__) from None

    def _chosen(self, indexes: tuple[int, ...]) -> Any:
        held: Any = list(self._last.message_types_by_name.values())
        found: Any = None
        for index in indexes:
            if not 0 <= index < len(held):
                raise DecodeError(f"message {index} of {len(held)} in {self._last.name}")
            found = held[index]
            held = list(found.nested_types)
        return found


def _indexes(data: memoryview) -> tuple[tuple[int, ...], int]:
    """Confluent's path to a message: a count and so many indexes, as zigzag numbers; a count of 0 means the first."""
    count, at = _zigzag(data, 0)
    if count == 0:
        return (0,), at
    if not 0 < count <= _MAX_INDEXES:
        raise DecodeError(f"{count} indexes of messages")
    found: list[int] = []
    for _ in range(count):
        index, at = _zigzag(data, at)
        found.append(index)
    return tuple(found), at


def _zigzag(data: memoryview, at: int) -> tuple[int, int]:
    found = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            raise DecodeError("the data ends before the message begins")
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), at
    raise DecodeError("the index of a message is longer than 32 bits")


def _messages(given: Any) -> list[str]:
    return [
        f"{file.package}.{message.name}" if file.package else message.name
        for file in given.file
        for message in file.message_type
    ][:20]


def _check_names(file: Any) -> None:
    """Each value repeats the names of its fields."""
    waiting = list(file.message_type)
    names = [value.name for enum in file.enum_type for value in enum.value]
    while waiting:
        each = waiting.pop()
        names += [name for field in each.field for name in (field.name, field.json_name)]
        names += [value.name for enum in each.enum_type for value in enum.value]
        waiting += each.nested_type
    names += [field.name for field in file.extension]
    if any(len(name) > MAX_NAME for name in names):
        raise ValueError(f"a name in {file.name} is longer than {MAX_NAME} characters")
