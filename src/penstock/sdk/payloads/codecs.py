"""Codecs turn plain data into bytes and back; each message says which one it was encoded with.

The header `penstock-content-type` has the name of the codec. A client knows the codecs that it was created with, and
`json`. There is no registry for the whole process: two clients of one program may speak to different worlds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from penstock.sdk.errors import DecodeError, InvalidInputError
from penstock.sdk.headers import CONTENT_TYPE, text_of
from penstock.sdk.payloads.decoders import PayloadType
from penstock.sdk.payloads.plain_data import NotPlainError, plain
from penstock.sdk.ports import Headers
from penstock.sdk.problem_log import error_line

_NAME = re.compile(r"[A-Za-z0-9._+/-]{1,64}")


@dataclass(frozen=True, slots=True)
class Codec:
    """A format for typed payloads, such as MessagePack.

    Example:
        ```python
        msgpack_codec = penstock.Codec("msgpack", msgpack.packb, msgpack.unpackb)
        client = penstock.Client(codecs=[msgpack_codec])
        ```
    """

    name: str
    """The name in the header `penstock-content-type`."""
    encode: Callable[[Any], bytes]
    """Takes plain data: None, True and False, numbers, text, lists, and dicts with text as keys."""
    decode: Callable[[bytes], Any]
    """Returns plain data. An exception means that the message cannot be decoded."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or _NAME.fullmatch(self.name) is None:
            raise InvalidInputError(
                f"name of a codec must be 1 to 64 letters, digits and . _ + / -, such as 'msgpack', not {self.name!r}"
            )
        for what, call in (("encode", self.encode), ("decode", self.decode)):
            if not callable(call):
                raise InvalidInputError(f"{what} of codec {self.name} must be a function, not {call!r}")


def _encode_json(data: Any) -> bytes:
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _decode_json(value: bytes) -> Any:
    return json.loads(value.decode(), parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


JSON = Codec("json", _encode_json, _decode_json)


class Codecs:
    """The codecs that a client knows."""

    __slots__ = ("_by_name", "_default")

    def __init__(self, codecs: Iterable[Codec] = ()) -> None:
        """The first codec is the default. `json` is always known, and the default if no codec is given."""
        if isinstance(codecs, Codec) or not isinstance(codecs, Iterable):
            raise InvalidInputError(f"codecs must be a list such as [penstock.Codec(...)], not {codecs!r}")
        given = list(codecs)
        self._by_name: dict[str, Codec] = {}
        for codec in given:
            if not isinstance(codec, Codec):
                raise InvalidInputError(f"codecs must contain objects of penstock.Codec, not {codec!r}")
            if codec.name in self._by_name:
                raise InvalidInputError(f"codecs contains two codecs with the name {codec.name}")
            self._by_name[codec.name] = codec
        self._by_name.setdefault(JSON.name, JSON)
        self._default = given[0] if given else JSON

    def encode(self, value: object, name: str | None = None) -> tuple[bytes, str]:
        """The bytes of a dataclass or a pydantic model, and the name of the codec. Raises `InvalidInputError`."""
        codec = self._default if name is None else self._by_name.get(name)
        if codec is None:
            raise InvalidInputError(f"codec {name!r} is not known: this client has {self._names()}")
        try:
            encoded = codec.encode(plain(value))
        except NotPlainError as error:
            raise InvalidInputError(f"value: {type(value).__name__} cannot be encoded: {error}") from None
        except Exception as error:
            raise InvalidInputError(
                f"value: {type(value).__name__} cannot be encoded as {codec.name}: {error_line(error)}"
            ) from error
        if not isinstance(encoded, bytes):
            raise InvalidInputError(f"codec {codec.name} must encode to bytes, not to {type(encoded).__name__}")
        return encoded, codec.name

    def decode(self, wanted: PayloadType, value: bytes | None, headers: Headers) -> Any:
        """The value of a message as an object. Raises `DecodeError`."""
        if value is None:
            if wanted.is_optional:
                return None
            raise DecodeError(f"not a valid {wanted.name}: the message has no value")
        name = text_of(headers, CONTENT_TYPE)
        codec = self._default if name is None else self._by_name.get(name)
        if codec is None:
            raise DecodeError(f"the message is encoded as {name!r}, and this client knows {self._names()}")
        if codec is JSON and wanted.reads_json:
            return wanted.from_json(value)
        try:
            data = codec.decode(value)
        except MemoryError:
            raise
        except Exception as error:
            raise DecodeError(f"not valid {codec.name}: {error_line(error)}") from None
        return wanted.from_data(data)

    def _names(self) -> str:
        return ", ".join(sorted(self._by_name))


JSON_ONLY = Codecs()
"""The codecs of a client that was created without any."""
