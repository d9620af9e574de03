"""Quotas: what users, client ids and addresses are limited to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from penstock.admin.connection import AdminConnection
from penstock.admin.errors import AdminError
from penstock.admin.results import Results
from penstock.admin.wire import call
from penstock.errors import Code, code_from
from penstock.protocol import apis
from penstock.protocol.apis import Api
from penstock.protocol.messages.alter_client_quotas import (
    AlterClientQuotasEntity,
    AlterClientQuotasEntry,
    AlterClientQuotasOperation,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
)
from penstock.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasComponent,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from penstock.security.quota_entity import DEFAULT_NAME, QuotaEntity, quota_entity
from penstock.security.quota_filter import Match

T = TypeVar("T")

_VERSION = 1

QuotaChange = Mapping[str, float | None]
"""New limits by Kafka's names for them; None takes one away."""


@dataclass(frozen=True, slots=True)
class QuotaDescription:
    """What an entity is limited to, on each broker."""

    entity: QuotaEntity
    limits: Mapping[str, float]
    """By Kafka's names for them, such as `producer_byte_rate`."""


class QuotaOperations:
    """Operations on quotas. The client library lacks them, so they go to a bootstrap server over a connection of their
    own (`wire`).
    """

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection

    def list(self, names: Mapping[str, str] | None = None) -> tuple[QuotaDescription, ...]:
        """The quotas of all entities, or of those with these names by type (`user`, `client-id`, `ip`), whatever other
        types they have; the empty name is the default.
        """
        components = tuple(
            DescribeClientQuotasComponent(
                entity_type=type_,
                match_type=Match.DEFAULT if name == DEFAULT_NAME else Match.EXACT,
                match=name or None,
            )
            for type_, name in (names or {}).items()
        )
        request = DescribeClientQuotasRequest(components=components, strict=False)
        told = self._ask(apis.DESCRIBE_CLIENT_QUOTAS, request, DescribeClientQuotasResponse)
        if told.error_code != Code.NONE:
            raise _error(told.error_code, told.error_message)
        found = [
            QuotaDescription(
                quota_entity({part.entity_type: part.entity_name for part in entry.entity}),
                {value.key: value.value for value in sorted(entry.values, key=lambda value: value.key)},
            )
            for entry in told.entries or ()
        ]
        return tuple(sorted(found, key=lambda each: str(each.entity)))

    def alter(self, changes: Mapping[QuotaEntity, QuotaChange]) -> Results[QuotaEntity, None]:
        """Sets limits, and takes limits away."""
        entries = tuple(
            AlterClientQuotasEntry(
                entity=tuple(
                    AlterClientQuotasEntity(entity_type=type_, entity_name=name or None)
                    for type_, name in entity.names.items()
                ),
                ops=tuple(
                    AlterClientQuotasOperation(key=key, value=value or 0.0, remove=value is None)
                    for key, value in change.items()
                ),
            )
            for entity, change in changes.items()
        )
        told = self._ask(apis.ALTER_CLIENT_QUOTAS, AlterClientQuotasRequest(entries=entries), AlterClientQuotasResponse)
        errors = {
            entity: _error(result.error_code, result.error_message)
            for entity, result in zip(changes, told.entries, strict=True)
            if result.error_code != Code.NONE
        }
        return Results({entity: None for entity in changes if entity not in errors}, errors)

    def remove(self, entities: Iterable[QuotaEntity]) -> Results[QuotaEntity, None]:
        """Takes all limits of these entities away; one without limits has none afterwards, too."""
        wanted = set(entities)
        known = {each.entity: each.limits for each in self.list() if each.entity in wanted}
        done = self.alter({entity: dict.fromkeys(limits) for entity, limits in known.items()})
        return Results({**done.values, **dict.fromkeys(wanted - known.keys())}, done.errors)

    def _ask(self, api: Api, request: object, response: type[T]) -> T:
        deadline = self._connection.deadline()
        listener = self._connection.listener()
        return call(listener, api, _VERSION, request, response, self._connection.settings, deadline)


def _error(code: int, message: str | None) -> AdminError:
    known = code_from(code)
    return AdminError(known.name, message or known.name)
