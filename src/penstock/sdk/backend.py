"""Where a client's messages are: what the SDK needs of a cluster, a database or a folder.

A backend makes the parts that send and receive. Everything above it is the same for all of them: buffering, spilling,
transactions of many messages, subscriptions with retries and dead letters, dedup, requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from penstock.ids import TopicPartition
from penstock.sdk.errors import SendError, TopicError
from penstock.sdk.ports import GroupConsumer, Outgoing, Receipt, Received

if TYPE_CHECKING:
    from penstock.sdk.receive.exactly_once import TransactionCommitter
    from penstock.sdk.receive.subscription_options import ValidatedOptions
    from penstock.sdk.send.observed_producer import SendObserver
    from penstock.sdk.send.send_outcome import SendOutcome
    from penstock.sdk.send.sending_options import Sending
    from penstock.sdk.timers import TimerQuery, WaitingMessage

Done = Callable[[Receipt | SendError], None]
"""Called once for each message, with its outcome."""
AS_BACKEND_SAYS = -1
"""A number of partitions or replicas that the backend chooses."""


@dataclass(frozen=True, slots=True)
class TopicShape:
    """The size of a topic."""

    partitions: int
    replicas: int


class Topics(Protocol):
    """Looks up and creates topics. Thread-safe."""

    def shape(self, topic: str) -> TopicShape | None:
        """None if the topic does not exist. Raises `TopicError`."""
        ...

    def partitions(self, topic: str) -> int:
        """The partition count. Raises `TopicError` if the topic does not exist."""
        shape = self.shape(topic)
        if shape is None:
            raise TopicError(f"topic {topic} does not exist")
        return shape.partitions

    def create(
        self,
        topic: str,
        partitions: int = AS_BACKEND_SAYS,
        replicas: int = AS_BACKEND_SAYS,
        config: Mapping[str, str] | None = None,
    ) -> bool:
        """Create a topic; False if it exists, which leaves it unchanged. Raises `TopicError` or `InvalidInputError`."""
        ...


class BatchProducer(Protocol):
    """Takes messages, sends them in batches, and tells the outcome of each in a thread of its own.

    A producer that has failed for good (`has_failed`) accepts nothing more; its owner replaces it.
    """

    has_failed: bool

    @property
    def outstanding(self) -> int:
        """Messages accepted and not reported."""
        ...

    def has_room_for(self, count: int, size_bytes: int) -> bool:
        """Whether so many messages are certain to be accepted at once, with a margin."""
        ...

    def produce(self, outgoing: Outgoing, done: Done, room_s: float = 0.0) -> None:
        """Accept a message, waiting up to `room_s` for room. Raises `BufferFullError` if there is none."""
        ...

    def produce_many(self, messages: Sequence[Outgoing], outcome: SendOutcome, room_s: float = 0.0) -> None:
        """Accept messages of one topic. Raises `BufferFullError` if none of them was accepted."""
        ...

    def flush(self, timeout_s: float) -> bool:
        """Send lingering messages now, and wait for all reports; whether they arrived in time."""
        ...

    def purge(self) -> None:
        """Give up everything unreported: it is reported as failed, also what is in transit."""
        ...

    def close(self) -> None:
        """Give up what is left. Must not be called by a `done`."""
        ...

    def retire(self) -> None:
        """End once everything is reported; for a producer that accepts nothing more."""
        ...


class TransactionalProducer(Protocol):
    """Begins, sends, commits or aborts: one transaction at a time, one thread at a time."""

    has_failed: bool
    """It is spent, and its owner replaces it."""

    def begin(self) -> None:
        """Begin a transaction; sends nothing."""
        ...

    def send_soon(self, outgoing: Outgoing) -> Future[Receipt]:
        """The future holds the receipt once the transaction has committed."""
        ...

    def send_offsets(self, positions: Mapping[TopicPartition, int], group_metadata: Any) -> None:
        """Commit the group's offsets with the messages, or not at all."""
        ...

    def commit(self) -> None:
        """Commit all or nothing. Raises `TransactionError`; with `is_unknown` the outcome is not known."""
        ...

    def abort(self) -> None:
        """Abort; a producer that cannot do that is spent."""
        ...

    def close(self) -> None: ...


class PartitionListener(Protocol):
    """Reads one partition from its end on, until it is closed."""

    def close(self) -> None: ...


class Backend(Protocol):
    """Makes the parts of a client. Thread-safe."""

    @property
    def topics(self) -> Topics: ...

    @property
    def client_id(self) -> str: ...

    @property
    def is_away(self) -> bool:
        """Whether the SDK knows, and has logged, that the backend cannot be reached."""
        ...

    def producer(self, sending: Sending, *, endless: bool = False) -> BatchProducer:
        """With `endless` it tries until a message is accepted or refused, and the caller bounds their number. Raises
        `InvalidInputError` for settings that the backend does not take.
        """
        ...

    def transactional_producer(self, sending: Sending, name: str) -> TransactionalProducer:
        """Fences the producer that used the name before. Raises `TransactionError`."""
        ...

    def group_consumer(self, options: ValidatedOptions) -> GroupConsumer:
        """A member of a group that has not joined yet."""
        ...

    def committer(self, group: str, observer: SendObserver) -> TransactionCommitter:
        """Commits the transactions of an exactly-once subscription."""
        ...

    def listen(self, topic: str, partition: int, on_message: Callable[[Received], None]) -> PartitionListener:
        """Call `on_message`, in a thread of the listener, for what is appended from now on. Raises `TopicError`."""
        ...

    def read_timers(self, query: TimerQuery) -> list[WaitingMessage]:
        """Read the delayed messages that a query asks for. Raises `TopicError`."""
        ...

    def close(self) -> None:
        """Called last, when all parts are closed."""
        ...
