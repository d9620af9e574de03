"""Decoders: a function per message class and version, generated on first use and kept.

Neighbouring fields of constant size, with the length of whatever follows them, are read by one
`struct` call. Whatever a peer sends, decoding ends in a message or in `ProtocolError`: every length is held
against the bytes that are left before anything is allocated for it, and every loop eats bytes. An entry takes many
times its bytes once it is an object, so entries are counted, those of all arrays together, before they are made.
Bytes after the message are ignored, as Kafka ignores them.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Any, TypeVar
from uuid import UUID

from penstock.errors import ProtocolError
from penstock.protocol.schema import (
    UUID_CODE,
    Array,
    Blob,
    Column,
    Fixed,
    Kind,
    Struct,
    Text,
    columns,
    flexible_from,
    smallest_size,
)
from penstock.protocol.source import Source
from penstock.protocol.steps import ENTRIES_A_STEP, Steps
from penstock.protocol.varint import continue_uvarint, read_uvarint, skip_tags

T = TypeVar("T")

Decoder = Callable[[bytes | memoryview, int, int], tuple[Any, int, int]]
SteppingDecoder = Callable[[bytes | memoryview, int, int], Steps[tuple[Any, int, int]]]

_UUIDS_KEPT = 4096

NO_LIMIT = 1 << 62
"""Of entries: for what brokers tell each other, and for what they keep."""


def decode(
    cls: type[T], version: int, data: bytes | memoryview, position: int = 0, max_entries: int = NO_LIMIT
) -> tuple[T, int]:
    """The message that starts at `position`, and the position after it; ProtocolError if its arrays have more than
    `max_entries` entries together.
    """
    read = decoder(cls, version)
    try:
        decoded: tuple[T, int, int] = read(data, position, max_entries)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise _unreadable(cls, version, error) from None
    return decoded[0], decoded[1]


def decode_in_steps(
    cls: type[T], version: int, data: bytes | memoryview, position: int, max_entries: int
) -> Steps[tuple[T, int]]:
    """The same as a generator that pauses now and then; the second value is how many entries there are."""
    read = _stepping_decoder(cls, version)
    try:
        decoded: tuple[T, int, int] = yield from read(data, position, max_entries)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise _unreadable(cls, version, error) from None
    return decoded[0], max_entries - decoded[2]


def _unreadable(cls: type, version: int, error: Exception) -> ProtocolError:
    if isinstance(error, UnicodeDecodeError):
        return ProtocolError(f"{cls.__name__} v{version} holds a string that is not UTF-8")
    return ProtocolError(f"{cls.__name__} v{version} ends too early")


def _compile(cls: type, version: int) -> Decoder:
    run: Decoder = _build(cls, version, in_steps=False)
    return run


def _compile_stepping(cls: type, version: int) -> SteppingDecoder:
    run: SteppingDecoder = _build(cls, version, in_steps=True)
    return run


def _build(cls: type, version: int, *, in_steps: bool) -> Any:
    generator = _DecoderSource(version, version >= flexible_from(cls), in_steps=in_steps)
    built = generator.struct(cls)
    generator.source.line(f"return {built}, pos, left")
    return generator.source.build("data, pos, left", f"decode {cls.__name__} v{version}")


# The raw decoder of a class and version; it reports a short message as `struct.error` or `IndexError`. It takes how
# many entries there may be, and returns how many were left.
decoder: Callable[[type, int], Decoder] = functools.cache(_compile)
_stepping_decoder: Callable[[type, int], SteppingDecoder] = functools.cache(_compile_stepping)


@functools.lru_cache(_UUIDS_KEPT)
def _uuid_of(data: bytes) -> UUID:
    """Topic ids come again and again, and making one is slow."""
    return UUID(bytes=data)


def _refuse(what: str) -> ProtocolError:
    return ProtocolError(f"{what} has a length that cannot be")


def _too_many(what: str) -> ProtocolError:
    return ProtocolError(f"the request has too many entries (limits.request_entries): counted up to {what}")


class _DecoderSource:
    """Writes the decoder of one message, struct by struct, field by field."""

    def __init__(self, version: int, flexible: bool, *, in_steps: bool) -> None:
        self.source = Source()
        self.source.names.update(
            too_many=_too_many,
            uuid_of=_uuid_of,
            ProtocolError=ProtocolError,
            refuse=_refuse,
            continue_uvarint=continue_uvarint,
            read_uvarint=read_uvarint,
            skip_tags=skip_tags,
            unpack_from=struct.unpack_from,
        )
        self.source.line("end = len(data)")
        if in_steps:
            self.source.line("made = 0")
            self.source.line("if made: yield")
        self._in_steps = in_steps
        self._version = version
        self._flexible = flexible
        self._run: list[tuple[str, str]] = []

    def struct(self, cls: type) -> str:
        """Reads a struct; returns the expression that makes it of the locals just read."""
        arguments = []
        tags = []
        for column in columns(cls, self._version):
            if column.tag is None:
                local = self.source.fresh(column.name)
                self._column(local, cls, column)
                arguments.append(f"{column.name}={local}")
            else:
                tags.append((column, self.source.fresh(column.name)))
        if self._flexible:
            self._tag_section(cls, tags)
            arguments.extend(f"{column.name}={local}" for column, local in tags)
        self._flush()
        return f"{self.source.bind(cls.__name__, cls)}({', '.join(arguments)})"

    def _column(self, local: str, cls: type, column: Column) -> None:
        if isinstance(column.kind, Struct) and column.nullable:
            self._nullable_struct(local, column.kind, tagged=column.tag is not None)
        else:
            self._value(local, column.kind, column.nullable, f"{cls.__name__}.{column.name}")

    def _value(self, local: str, kind: Kind, nullable: bool, what: str) -> None:
        match kind:
            case Fixed(code=code):
                self._run.append((code, local))
                if code == UUID_CODE:
                    self._flush()
                    self.source.line(f"{local} = uuid_of({local})")
            case Text():
                self._sized("h", local, nullable, what, "str(data[pos:stop], 'utf-8') if stop > pos else ''")
            case Blob():
                self._sized("i", local, nullable, what, "bytes(data[pos:stop])")
            case Array(item=item):
                self._array(local, item, nullable, what)
            case Struct(cls=nested):
                self.source.line(f"{local} = {self.struct(nested)}")

    def _nullable_struct(self, local: str, kind: Struct, tagged: bool) -> None:
        """A struct behind a marker: null is negative in its place, and zero under a tag."""
        source = self.source
        marker = source.fresh("marker")
        self._run.append(("b", marker))
        self._flush()
        source.line(f"{local} = None")
        source.line(f"if {marker} {'>' if tagged else '>='} 0:")
        source.indent()
        built = self.struct(kind.cls)
        source.line(f"{local} = {built}")
        source.dedent()

    def _sized(self, code: str, local: str, nullable: bool, what: str, expression: str) -> None:
        source = self.source
        size = self._length(code)
        self._guard(local, size, nullable, what)
        source.line(f"stop = pos + {size}")
        source.line(f"if stop > end: raise refuse({what!r})")
        source.line(f"{local} = {expression}")
        source.line("pos = stop")
        source.dedent()

    def _array(self, local: str, item: Kind, nullable: bool, what: str) -> None:
        source = self.source
        count = self._length("i")
        self._guard(local, count, nullable, what)
        size = smallest_size(item, self._version, self._flexible)
        source.line(f"if {count} * {size} > end - pos: raise refuse({what!r})")
        source.line(f"left -= {count}")
        source.line(f"if left < 0: raise too_many({what!r})")
        if isinstance(item, Fixed) and item.code != UUID_CODE:
            source.line(f"{local} = unpack_from(f'>{{{count}}}{item.code}', data, pos)")
            source.line(f"pos += {count} * {size}")
        else:
            self._items(local, item, count, what)
        source.dedent()

    def _items(self, local: str, item: Kind, count: str, what: str) -> None:
        source = self.source
        items = source.fresh("items")
        source.line(f"{items} = []")
        source.line(f"for _ in range({count}):")
        source.indent()
        if self._in_steps:
            source.line("made += 1")
            source.line(f"if not made & {ENTRIES_A_STEP - 1}: yield")
        if isinstance(item, Struct):
            source.line(f"{items}.append({self.struct(item.cls)})")
        else:
            element = source.fresh("item")
            self._value(element, item, False, what)
            self._flush()
            source.line(f"{items}.append({element})")
        source.dedent()
        source.line(f"{local} = tuple({items})")

    def _length(self, code: str) -> str:
        """Reads a length or count into a local; -1 stands for null in both encodings."""
        source = self.source
        size = source.fresh("size")
        if not self._flexible:
            self._run.append((code, size))
            self._flush()
            return size
        self._varint(size)
        source.line(f"{size} -= 1")
        return size

    def _varint(self, local: str) -> None:
        self._run.append(("B", local))
        self._flush()
        self.source.line(f"if {local} > 127: {local}, pos = continue_uvarint(data, pos, {local})")

    def _guard(self, local: str, size: str, nullable: bool, what: str) -> None:
        """Settles null and negative lengths and opens the block in which the length is good."""
        source = self.source
        source.line(f"if {size} < 0:")
        source.indent()
        if nullable:
            source.line(f"if {size} < -1: raise refuse({what!r})")
            source.line(f"{local} = None")
        else:
            source.line(f"raise refuse({what!r})")
        source.dedent()
        source.line("else:")
        source.indent()

    def _tag_section(self, cls: type, tags: list[tuple[Column, str]]) -> None:
        source = self.source
        count = source.fresh("tags")
        self._varint(count)
        source.line(f"if {count}:")
        source.line(f"    left -= {count}")
        source.line(f"    if left < 0: raise too_many('the tagged fields of {cls.__name__}')")
        if not tags:
            source.line(f"    pos = skip_tags(data, pos, {count})")
            return
        for column, local in tags:
            source.line(f"{local} = {source.bind('default', column.default)}")
        tag, stop = source.fresh("tag"), source.fresh("stop")
        source.line(f"for _ in range({count}):")
        source.indent()
        source.line(f"{tag}, pos = read_uvarint(data, pos)")
        source.line(f"{stop}, pos = read_uvarint(data, pos)")
        source.line(f"{stop} += pos")
        source.line(f"if {stop} > end: raise refuse('a tagged field')")
        for column, local in tags:
            source.line(f"if {tag} == {column.tag}:")
            source.indent()
            self._column(local, cls, column)
            self._flush()
            source.line(f"if pos != {stop}: raise refuse('tagged {cls.__name__}.{column.name}')")
            source.dedent()
        source.line(f"pos = {stop}")
        source.dedent()

    def _flush(self) -> None:
        """Reads the constant-size fields gathered so far in one call."""
        if not self._run:
            return
        layout = struct.Struct(">" + "".join(code for code, _ in self._run))
        targets = ", ".join(local for _, local in self._run)
        self.source.line(f"{targets}, = {self.source.bind('unpack', layout.unpack_from)}(data, pos)")
        self.source.line(f"pos += {layout.size}")
        self._run.clear()
