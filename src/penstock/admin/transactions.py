"""Transactions: which are known, which are open and for how long, and aborting one by fencing its producer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from confluent_kafka import KafkaException, Producer

from penstock.admin.cluster_nodes import cluster_nodes
from penstock.admin.connection import AdminConnection, Deadline
from penstock.admin.errors import AdminError, admin_error
from penstock.admin.results import Results
from penstock.admin.wire import call
from penstock.config.address import Address
from penstock.errors import Code, code_from
from penstock.ids import TopicPartition
from penstock.protocol import apis
from penstock.protocol.apis import Api
from penstock.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from penstock.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse

T = TypeVar("T")

_LIST_VERSION = 1
_DESCRIBE_VERSION = 0
_OPEN = "Ongoing"
_FENCING_TIMEOUT_MS = 10_000


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transactional id as a list shows it; the state is Kafka's: Ongoing, Empty, CompleteCommit, ..."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """All transactional ids of which brokers told."""

    transactions: tuple[OpenTransaction, ...]
    errors: tuple[AdminError, ...]
    """Of brokers that did not tell of theirs."""


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id, and what its transaction has touched."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    """None if no transaction is open."""
    partitions: tuple[TopicPartition, ...]

    @property
    def is_open(self) -> bool:
        return self.state == _OPEN


class TransactionOperations:
    """Operations on transactions. The client library cannot list or describe them, so these requests go to each broker
    over a socket of our own (`wire`).
    """

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection

    def list(self, *, open_only: bool = False, older_than_ms: int | None = None) -> TransactionListing:
        """Transactional ids by name: all, those with an open transaction, or those open for this long."""
        deadline = self._connection.deadline()
        request = ListTransactionsRequest(
            state_filters=(_OPEN,) if open_only else (),
            duration_filter=-1 if older_than_ms is None else older_than_ms,
        )
        found: list[OpenTransaction] = []
        errors: list[AdminError] = []
        for id, address in cluster_nodes(self._connection, deadline).addresses.items():
            try:
                told = self._ask(
                    address, apis.LIST_TRANSACTIONS, _LIST_VERSION, request, ListTransactionsResponse, deadline
                )
                _check(told.error_code, "the broker does not list its transactions")
            except AdminError as error:
                errors.append(error)
                continue
            found += [
                OpenTransaction(each.transactional_id, each.producer_id, each.transaction_state, id)
                for each in told.transaction_states
            ]
        return TransactionListing(tuple(sorted(found, key=lambda each: each.transactional_id)), tuple(errors))

    def describe(self, ids: Iterable[str]) -> Results[str, TransactionDescription]:
        """These transactional ids; TRANSACTIONAL_ID_NOT_FOUND for one that no broker knows."""
        deadline = self._connection.deadline()
        wanted = list(dict.fromkeys(ids))
        values: dict[str, TransactionDescription] = {}
        errors: dict[str, AdminError] = {}
        for address in cluster_nodes(self._connection, deadline).addresses.values():
            left = tuple(id for id in wanted if id not in values)
            if not left:
                break
            try:
                told = self._ask(
                    address,
                    apis.DESCRIBE_TRANSACTIONS,
                    _DESCRIBE_VERSION,
                    DescribeTransactionsRequest(transactional_ids=left),
                    DescribeTransactionsResponse,
                    deadline,
                )
            except AdminError as error:
                errors |= dict.fromkeys(left, error)
                continue
            for each in told.transaction_states:
                if each.error_code == Code.NONE:
                    values[each.transactional_id] = TransactionDescription(
                        transactional_id=each.transactional_id,
                        state=each.transaction_state,
                        producer_id=each.producer_id,
                        producer_epoch=each.producer_epoch,
                        timeout_ms=each.transaction_timeout_ms,
                        started_ms=each.transaction_start_time_ms if each.transaction_start_time_ms >= 0 else None,
                        partitions=tuple(
                            TopicPartition(topic.topic, index) for topic in each.topics for index in topic.partitions
                        ),
                    )
        missing = {
            id: errors.get(
                id, AdminError(Code.TRANSACTIONAL_ID_NOT_FOUND.name, f"no broker knows the transactional id {id}")
            )
            for id in wanted
            if id not in values
        }
        return Results(values, missing)

    def abort(self, transactional_id: str) -> TransactionDescription:
        """Aborts what is open under an id by taking the id over: its producer is fenced and cannot commit any more.
        Gives the transaction as it was before.
        """
        before = self.describe([transactional_id])[transactional_id]
        settings = {"transactional.id": transactional_id, "transaction.timeout.ms": _FENCING_TIMEOUT_MS}
        try:
            producer = Producer(self._connection.settings.settings_for(settings))
            producer.init_transactions(self._connection.timeout_s)
        except KafkaException as error:
            raise admin_error(error) from None
        return before

    def _ask(
        self, address: Address, api: Api, version: int, request: object, response: type[T], deadline: Deadline
    ) -> T:
        return call(address, api, version, request, response, self._connection.settings, deadline)


def _check(code: int, message: str) -> None:
    if code != Code.NONE:
        raise AdminError(code_from(code).name, message)
