"""Encoders: a function per message class and version, generated on first use and kept.

Neighbouring fields of constant size, with the length of whatever follows them, are packed by one
`struct` call. Fields that the version lacks are dropped. A message that cannot be written (a null where the
version has none, a number that does not fit) is a mistake of this broker and raises `ValueError`.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Any

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
)
from penstock.protocol.source import Source
from penstock.protocol.steps import ENTRIES_A_STEP, Steps
from penstock.protocol.varint import uvarint

Encoder = Callable[[Any, Callable[[bytes], None]], None]
SteppingEncoder = Callable[[Any, Callable[[bytes], None]], Steps[None]]


def encode(message: object, version: int) -> bytes:
    """The body of a message, without size and header."""
    parts: list[bytes] = []
    encode_into(parts, message, version)
    return b"".join(parts)


def encode_into(parts: list[bytes], message: object, version: int) -> None:
    """Appends the body of a message, for a caller that joins it with what stands before it."""
    write = encoder(type(message), version)
    try:
        write(message, parts.append)
    except (struct.error, AttributeError, TypeError) as error:
        raise ValueError(f"{type(message).__name__} has no v{version} form: {error}") from error


def encode_in_steps(parts: list[bytes], message: object, version: int) -> Steps[None]:
    """Like `encode_into`, as a generator that pauses now and then."""
    write = _stepping_encoder(type(message), version)
    try:
        yield from write(message, parts.append)
    except (struct.error, AttributeError, TypeError) as error:
        raise ValueError(f"{type(message).__name__} has no v{version} form: {error}") from error


def _compile(cls: type, version: int) -> Encoder:
    run: Encoder = _build(cls, version, in_steps=False)
    return run


def _compile_stepping(cls: type, version: int) -> SteppingEncoder:
    run: SteppingEncoder = _build(cls, version, in_steps=True)
    return run


def _build(cls: type, version: int, *, in_steps: bool) -> Any:
    generator = _EncoderSource(version, version >= flexible_from(cls), in_steps=in_steps)
    generator.struct(cls, "message")
    generator.flush()
    return generator.source.build("message, append", f"encode {cls.__name__} v{version}")


# The raw encoder of a class and version; it hands the pieces of a message to a function.
encoder: Callable[[type, int], Encoder] = functools.cache(_compile)
_stepping_encoder: Callable[[type, int], SteppingEncoder] = functools.cache(_compile_stepping)


class _EncoderSource:
    """Writes the encoder of one message, struct by struct, field by field."""

    def __init__(self, version: int, flexible: bool, *, in_steps: bool) -> None:
        self.source = Source()
        self.source.names.update(uvarint=uvarint, pack=struct.pack)
        self.source.line("pass")
        if in_steps:
            self.source.line("written = 0")
            self.source.line("if written: yield")
        self._in_steps = in_steps
        self._version = version
        self._flexible = flexible
        self._append = "append"
        self._run: list[tuple[str, str]] = []

    def struct(self, cls: type, expression: str) -> None:
        present = columns(cls, self._version)
        for column in present:
            if column.tag is None:
                self._column(column, f"{expression}.{column.name}")
        if not self._flexible:
            return
        tags = [column for column in present if column.tag is not None]
        if tags:
            self._tag_section(tags, expression)
        else:
            self._run.append(("x", ""))

    def _column(self, column: Column, expression: str) -> None:
        if isinstance(column.kind, Struct) and column.nullable:
            self._nullable_struct(column.kind, expression, tagged=column.tag is not None)
        else:
            self._value(column.kind, column.nullable, expression)

    def _value(self, kind: Kind, nullable: bool, expression: str) -> None:
        match kind:
            case Fixed(code=code):
                self._run.append((code, f"{expression}.bytes" if code == UUID_CODE else expression))
            case Text():
                self._sized("h", nullable, expression, ".encode()")
            case Blob():
                self._sized("i", nullable, expression, "")
            case Array(item=item):
                self._array(item, nullable, expression)
            case Struct(cls=nested):
                local = self.source.fresh("value")
                self.source.line(f"{local} = {expression}")
                self.struct(nested, local)

    def _nullable_struct(self, kind: Struct, expression: str, tagged: bool) -> None:
        """A struct behind a marker: null is negative in its place, and zero under a tag."""
        source = self.source
        null = b"\0" if tagged else b"\xff"
        local = source.fresh("value")
        self.flush()
        source.line(f"{local} = {expression}")
        source.line(f"if {local} is None: {self._append}({null!r})")
        source.line("else:")
        source.indent()
        source.line(f"{self._append}(b'\\x01')")
        self.struct(kind.cls, local)
        self.flush()
        source.dedent()

    def _sized(self, code: str, nullable: bool, expression: str, convert: str) -> None:
        source = self.source
        raw, size = source.fresh("raw"), source.fresh("size")
        if nullable:
            source.line(f"{raw} = {expression}")
            source.line(f"if {raw} is None:")
            source.line(f"    {raw} = b''; {size} = -1")
            source.line("else:")
            source.line(f"    {raw} = {raw}{convert}; {size} = len({raw})")
        else:
            source.line(f"{raw} = {expression}{convert}; {size} = len({raw})")
        self._length(code, size)
        source.line(f"{self._append}({raw})")

    def _array(self, item: Kind, nullable: bool, expression: str) -> None:
        source = self.source
        items, size = source.fresh("items"), source.fresh("size")
        source.line(f"{items} = {expression}")
        if nullable:
            source.line(f"if {items} is None:")
            source.line(f"    {items} = (); {size} = -1")
            source.line(f"else: {size} = len({items})")
        else:
            source.line(f"{size} = len({items})")
        self._length("i", size)
        if isinstance(item, Fixed) and item.code != UUID_CODE:
            source.line(f"if {items}: {self._append}(pack(f'>{{{size}}}{item.code}', *{items}))")
            return
        element = source.fresh("item")
        source.line(f"for {element} in {items}:")
        source.indent()
        if self._in_steps:
            source.line("written += 1")
            source.line(f"if not written & {ENTRIES_A_STEP - 1}: yield")
        if isinstance(item, Struct):
            self.struct(item.cls, element)
        else:
            self._value(item, False, element)
        self.flush()
        source.dedent()

    def _length(self, code: str, size: str) -> None:
        if self._flexible:
            self.flush()
            self.source.line(f"{self._append}(uvarint({size} + 1))")
        else:
            self._run.append((code, size))
            self.flush()

    def _tag_section(self, tags: list[Column], expression: str) -> None:
        source = self.source
        self.flush()
        section, outer = source.fresh("section"), self._append
        source.line(f"{section} = []")
        for column in tags:
            local, pieces = source.fresh("value"), source.fresh("pieces")
            source.line(f"{local} = {expression}.{column.name}")
            source.line(f"if {local} != {source.bind('default', column.default)}:")
            source.indent()
            source.line(f"{pieces} = []")
            self._append = f"{pieces}.append"
            self._column(column, local)
            self.flush()
            source.line(f"{pieces} = b''.join({pieces})")
            source.line(f"{section}.append(uvarint({column.tag}) + uvarint(len({pieces})) + {pieces})")
            source.dedent()
        self._append = outer
        source.line(f"{outer}(uvarint(len({section})))")
        source.line(f"{outer}(b''.join({section}))")

    def flush(self) -> None:
        """Packs the constant-size fields gathered so far in one call."""
        if not self._run:
            return
        layout = struct.Struct(">" + "".join(code for code, _ in self._run))
        values = ", ".join(value for _, value in self._run if value)
        self.source.line(f"{self._append}({self.source.bind('pack', layout.pack)}({values}))")
        self._run.clear()
