"""The schemas of topics: kept in the console's database, compiled when they are first needed.

Rules:
- A message is decoded before it is masked: masks, searches and downloads see what the schema makes of it.
- A message that its schema does not fit is shown as it is, with the reason; a mask then hides it whole.
- What a message may cost is bounded: its size here, its parts and its nesting in `decode_error`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.clock import Clock
from penstock.console.errors import BusyError, ConflictError, InvalidError, MissingError
from penstock.console.schemas.decode_error import DecodeError
from penstock.console.schemas.schema_rule import CompiledSchema, SchemaFormat, SchemaRule, Side, frame_id
from penstock.console.state.rules import RuleStore
from penstock.logs import fields
from penstock.sdk.ports import Received

logger = logging.getLogger(__name__)

MAX_SCHEMAS = 2_000
MAX_OF_TOPIC = 50
MAX_DECODED_BYTES = 256 << 10
_KIND = "schema"
_FRESH_MS = 2_000
_COMPILED = 200


@dataclass(frozen=True, slots=True)
class Decoding:
    """What a schema made of a part of a message."""

    format: str
    """`avro`, `protobuf` or `json`."""
    size_bytes: int
    """Of the part before it was decoded."""
    problem: str = ""
    """Why it was not decoded."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """A message whose key and value are JSON where a schema fits."""

    message: Received
    key: Decoding | None = None
    value: Decoding | None = None


@dataclass(frozen=True, slots=True)
class SchemaSet:
    """The schemas of a topic and of those that its messages come from; the first that fits counts."""

    schemas: tuple[CompiledSchema, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.schemas)

    def decoded(self, message: Received) -> Decoded:
        """May take a while: call it in a thread."""
        if not self.schemas:
            return Decoded(message)
        key, key_decoding = self._part(Side.KEY, message.key)
        value, value_decoding = self._part(Side.VALUE, message.value)
        if key is message.key and value is message.value:
            return Decoded(message, key_decoding, value_decoding)
        changed = Received(
            topic=message.topic,
            partition=message.partition,
            offset=message.offset,
            value=value,
            key=key,
            headers=message.headers,
            timestamp_ms=message.timestamp_ms,
        )
        return Decoded(changed, key_decoding, value_decoding)

    def _part(self, side: Side, raw: bytes | None) -> tuple[bytes | None, Decoding | None]:
        if raw is None:
            return None, None
        id = frame_id(raw)
        found = [each for each in self.schemas if each.rule.side is side and each.fits(id)]
        # A schema for exactly this id comes before one for any, and that before one for data without framing.
        schema = min(found, key=lambda each: (not each.rule.is_framed, each.rule.schema_id is None), default=None)
        if schema is None:
            return raw, None
        kind = schema.rule.format.value
        if len(raw) > MAX_DECODED_BYTES:
            return raw, Decoding(kind, len(raw), f"it is longer than {MAX_DECODED_BYTES} bytes")
        try:
            text = json.dumps(schema.decode(raw), ensure_ascii=False).encode("utf-8", "surrogatepass")
        except (DecodeError, RecursionError) as error:
            return raw, Decoding(kind, len(raw), str(error))
        return text, Decoding(kind, len(raw))


class TopicSchemas:
    """All schemas of the console."""

    def __init__(self, store: RuleStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._read_ms: float | None = None
        self._ids: dict[str, list[str]] = {}
        """By topic, in the order in which they were added."""
        self._compiled: OrderedDict[str, CompiledSchema] = OrderedDict()

    async def list(self, cluster: str, topic: str) -> tuple[SchemaRule, ...]:
        found: list[SchemaRule] = []
        for id in (await self._known()).get(topic, ()):
            body = await self._store.find(_KIND, id)
            if body is not None and body["cluster"] == cluster:
                found.append(SchemaRule.parse(id, topic, body))
        return tuple(found)

    async def topics(self, cluster: str) -> Sequence[str]:
        """Those of a cluster that have schemas."""
        return [topic for topic in await self._known() if await self.list(cluster, topic)]

    async def of(self, cluster: str, topics: Iterable[str]) -> SchemaSet:
        """For messages that are in, or come from, these topics."""
        known = await self._known()
        wanted = [(topic, id) for topic in dict.fromkeys(topics) for id in known.get(topic, ())]
        found = [await self._find(topic, id) for topic, id in wanted]
        return SchemaSet(tuple(each for each in found if each is not None and each.rule.cluster == cluster))

    async def add(self, rule: SchemaRule) -> SchemaRule:
        """InvalidError if it cannot be used; ConflictError if there is one for the same messages."""
        if rule.schema_id is not None and not rule.is_framed:
            raise InvalidError("data without framing has no schema id; nothing was changed")
        if rule.message and rule.format is not SchemaFormat.PROTOBUF:
            raise InvalidError("only Protobuf names a message; nothing was changed")
        compiled = await asyncio.to_thread(CompiledSchema, rule)
        self._read_ms = None
        known = await self._known()
        held = await self.list(rule.cluster, rule.topic)
        if len(held) >= MAX_OF_TOPIC or sum(map(len, known.values())) >= MAX_SCHEMAS:
            raise BusyError(f"a topic has at most {MAX_OF_TOPIC} schemas and the console {MAX_SCHEMAS}; none was added")
        same = (rule.side, rule.is_framed, rule.schema_id)
        if any((each.side, each.is_framed, each.schema_id) == same for each in held):
            raise ConflictError(
                f"there is a schema for such {rule.side.value}s of {rule.topic}; remove it first. Nothing was changed"
            )
        made = replace(rule, id=await self._store.add(_KIND, rule.topic, rule.body()))
        self._read_ms = None
        self._keep(made.id, compiled)
        compiled.rule = made
        return made

    async def remove(self, cluster: str, topic: str, id: str) -> SchemaRule:
        """MissingError if the topic has none of this id."""
        if id not in {each.id for each in await self.list(cluster, topic)}:
            raise MissingError(f"{topic} has no schema {id}; nothing was removed")
        _, body = await self._store.remove(_KIND, id)
        self._read_ms = None
        self._compiled.pop(id, None)
        return SchemaRule.parse(id, topic, body)

    async def _known(self) -> Mapping[str, Sequence[str]]:
        now_ms = self._clock.monotonic_ms()
        if self._read_ms is None or now_ms - self._read_ms > _FRESH_MS:
            ids: dict[str, list[str]] = {}
            for id, topic in await self._store.names(_KIND):
                ids.setdefault(topic, []).append(id)
            self._ids, self._read_ms = ids, now_ms
        return self._ids

    async def _find(self, topic: str, id: str) -> CompiledSchema | None:
        held = self._compiled.get(id)
        if held is None:
            body = await self._store.find(_KIND, id)
            if body is None:
                return None
            try:
                held = await asyncio.to_thread(CompiledSchema, SchemaRule.parse(id, topic, body))
            except InvalidError as error:
                # It could be used when it was added: messages are shown as they are meanwhile.
                logger.warning("a schema cannot be used", extra=fields(topic=topic, problem=str(error)))
                return None
            self._keep(id, held)
        self._compiled.move_to_end(id)
        return held

    def _keep(self, id: str, compiled: CompiledSchema) -> None:
        self._compiled[id] = compiled
        while len(self._compiled) > _COMPILED:
            self._compiled.popitem(last=False)
