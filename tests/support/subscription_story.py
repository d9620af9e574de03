"""A subscription that is played step by step: a consumer, a producer, a runner and a clock that the story moves."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from penstock.clock import ManualClock
from penstock.ids import TopicPartition
from penstock.sdk.errors import SendError, TransactionError
from penstock.sdk.hooks.base import Hooks
from penstock.sdk.message import Message
from penstock.sdk.ports import Headers, Outgoing, RebalanceListener, Receipt, Received
from penstock.sdk.receive.exactly_once import RefusedError
from penstock.sdk.receive.handler_call import Handler
from penstock.sdk.receive.handler_runners import Steps, drive
from penstock.sdk.receive.retries import Retries
from penstock.sdk.receive.subscription import Subscription
from penstock.sdk.receive.subscription_options import ValidatedOptions, validate_options
from penstock.sdk.receive.topic_layout import RetryTopic, TopicLayout

LAYOUT = TopicLayout({"orders": RetryTopic("g.orders.retry", 1)}, "g.dead", dead_partitions=1)
EXACT = Retries(first="1s", factor=2, cap="1m", attempts=3, jitter=0)


def tp(partition: int, topic: str = "orders") -> TopicPartition:
    return TopicPartition(topic, partition)


class PlayedConsumer:
    """Gives what it was told to, at most as much as is asked for."""

    def __init__(self) -> None:
        self.coming: deque[Received] = deque()
        self.listener: RebalanceListener | None = None
        self.paused: set[TopicPartition] = set()
        self.settled_at: dict[TopicPartition, int] = {}
        self.positions: dict[TopicPartition, int] = {}
        self.commits: list[tuple[dict[TopicPartition, int], Callable[[bool], None]]] = []
        self.events: deque[Callable[[], None]] = deque()
        self.rewinds = 0
        self.can_rewind = True
        self.is_closed = False

    def join(self, topics: Sequence[str], listener: RebalanceListener, *, from_end: Sequence[str] = ()) -> None:
        self.topics, self.from_end, self.listener = list(topics), list(from_end), listener

    def poll(self, max_count: int, timeout_s: float) -> Sequence[Received]:
        while self.events:
            self.events.popleft()()
        found: list[Received] = []
        for received in list(self.coming):
            if len(found) < max_count and received.topic_partition not in self.paused:
                self.coming.remove(received)
                found.append(received)
                self.positions[received.topic_partition] = received.offset + 1
        return found

    def pause(self, topic_partitions: Iterable[TopicPartition]) -> None:
        self.paused.update(topic_partitions)

    def resume(self, topic_partitions: Iterable[TopicPartition]) -> None:
        self.paused.difference_update(topic_partitions)

    def position(self, tp: TopicPartition) -> int | None:
        return self.positions.get(tp)

    def store_offsets(self, positions: Mapping[TopicPartition, int]) -> None:
        self.settled_at.update(positions)

    def commit(self, positions: Mapping[TopicPartition, int], done: Callable[[bool], None]) -> None:
        self.commits.append((dict(positions), done))

    def seek_to_committed(self) -> bool:
        self.rewinds += 1
        return self.can_rewind

    def group_metadata(self) -> object:
        return "metadata"

    def close(self) -> None:
        self.is_closed = True


class PlayedProducer:
    """Answers when the story does."""

    def __init__(self) -> None:
        self.sent: list[tuple[Outgoing, Future[Receipt]]] = []

    def send_soon(self, outgoing: Outgoing) -> Future[Receipt]:
        future: Future[Receipt] = Future()
        self.sent.append((outgoing, future))
        return future

    def answer(self, error: SendError | None = None) -> Outgoing:
        """Answers the oldest that waits."""
        outgoing, future = self.sent.pop(0)
        if error is None:
            future.set_result(Receipt(outgoing.topic, 0, 0))
        else:
            future.set_exception(error)
        return outgoing


class PlayedCommitter:
    """Commits, or fails as it was told to."""

    def __init__(self) -> None:
        self.committed: list[tuple[list[Outgoing], dict[TopicPartition, int]]] = []
        self.failures: deque[TransactionError] = deque()

    def commit(self, outgoing: Sequence[Outgoing], positions: Mapping[TopicPartition, int], group: object) -> None:
        if self.failures:
            raise self.failures.popleft()
        self.committed.append((list(outgoing), dict(positions)))

    def refuse(self, index: int) -> None:
        self.failures.append(RefusedError(index, "too large"))

    def close(self) -> None:
        pass


class HeldRunner:
    """Handlers begin when the story wants; each can be left standing in the middle."""

    def __init__(self) -> None:
        self.waiting: deque[Steps] = deque()
        self.background_tasks: deque[Callable[[], None]] = deque()

    def start(self, steps: Steps) -> None:
        self.waiting.append(steps)

    def background(self, task: Callable[[], None]) -> None:
        self.background_tasks.append(task)

    def close(self) -> None:
        pass

    def run(self) -> None:
        """Everything that waits, and what follows from it."""
        while self.waiting or self.background_tasks:
            if self.waiting:
                drive(self.waiting.popleft())
            while self.background_tasks:
                self.background_tasks.popleft()()


class Watching(Hooks):
    def __init__(self) -> None:
        self.handled_values: list[bytes | None] = []
        self.retried_after: list[int] = []
        self.dead: list[str] = []

    def handled(self, message: Message, seconds: float) -> None:
        self.handled_values.append(message.value)

    def retried(self, message: Message, error: str, after_ms: int) -> None:
        self.retried_after.append(after_ms)

    def dead_lettered(self, message: Message, error: str) -> None:
        self.dead.append(error)


class Story:
    """One subscription to `orders` of the group `g`."""

    def __init__(
        self,
        handler: Callable[[Any], Any],
        partitions: Sequence[int] = (0,),
        layout: TopicLayout = LAYOUT,
        **options: Any,
    ) -> None:
        self._layout = layout
        self.clock = ManualClock()
        self.consumer, self.producer, self.runner, self.committer = (
            PlayedConsumer(),
            PlayedProducer(),
            HeldRunner(),
            PlayedCommitter(),
        )
        self.hooks = Watching()
        self.subscription = Subscription(
            validate_options("orders", group="g", **{"retries": EXACT, **options}),
            Handler(handler, is_batch=options.get("batch") is not None),
            provisioner=self,
            consumer=self.consumer,
            producer=self.producer,
            runner=self.runner,
            committer=self.committer,
            hooks=self.hooks,
            clock=self.clock,
            chance=lambda: 0.5,
        )
        assert self.subscription.join()
        self.subscription.assigned([tp(partition) for partition in partitions])

    def provision(self, options: ValidatedOptions) -> TopicLayout:
        return self._layout

    def retry_topic(self, group: str, topic: str) -> RetryTopic:
        return RetryTopic(f"{group}.{topic}.retry", 1)

    def comes(
        self,
        *values: bytes,
        partition: int = 0,
        key: bytes | None = None,
        first: int | None = None,
        headers: Headers = (),
        topic: str = "orders",
    ) -> None:
        """Messages are there to be received."""
        coming = [each.offset for each in self.consumer.coming if each.topic_partition == tp(partition, topic)]
        at = max([*coming, self.consumer.positions.get(tp(partition, topic), 0) - 1]) + 1 if first is None else first
        for offset, value in enumerate(values, at):
            self.consumer.coming.append(Received(topic, partition, offset, value, key, headers, 1_000))

    def step(self) -> None:
        """One turn of the polling thread; handlers do not run."""
        self.subscription.step(0.0)

    def play(self, turns: int = 3) -> None:
        """Turns, in which handlers run."""
        for _ in range(turns):
            self.step()
            self.runner.run()
        self.step()

    def passes(self, ms: int) -> None:
        self.clock.advance(ms)
        self.step()

    def committable(self, partition: int = 0) -> int | None:
        return self.consumer.settled_at.get(tp(partition))
