"""Who is online, what is shown to them, and how far each member has read.

A member is a consumer group: its committed offset in a partition is the id of the last message that was shown. What
lies behind it is unread.
"""

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaException, TopicPartition
from store import PARTITIONS, TOPIC, ChatMessage, Store

import penstock

WAITING = 1_000
"""Messages that may wait for a slow connection. It is closed then, and the rest is unread."""
COMMIT_S = 1.0
ANSWER_S = 10.0


class ReadPositions:
    """By partition: the id of the last message that a member has seen. Begins where the member stopped last time."""

    def __init__(self, bootstrap: str, name: str) -> None:
        # A consumer that reads nothing: it keeps the offsets of its group.
        self._group = Consumer({"bootstrap.servers": bootstrap, "group.id": f"chat.{name}", "log_level": 0})
        self._committed = dict.fromkeys(range(PARTITIONS), 0)
        asked = [TopicPartition(TOPIC, partition) for partition in self._committed]
        for found in self._group.committed(asked, ANSWER_S):
            self._committed[found.partition] = max(0, found.offset)
        self.ids = dict(self._committed)

    def commit(self) -> None:
        """If no broker answers, the next call tries again."""
        ids = dict(self.ids)
        if ids != self._committed:
            offsets = [TopicPartition(TOPIC, partition, id) for partition, id in ids.items()]
            with contextlib.suppress(KafkaException):
                self._group.commit(offsets=offsets, asynchronous=False)
                self._committed = ids

    def close(self) -> None:
        self.commit()
        self._group.close()


class Session:
    """One member who is online. Two threads: this one writes what is new, that of the connection reads commands."""

    def __init__(self, name: str, rooms: set[str], read: ReadPositions, connection: socket.socket) -> None:
        self.name = name
        self.rooms = rooms
        self._read = read
        self._connection = connection
        self._turn = threading.Lock()
        self._waiting: queue.Queue[ChatMessage] = queue.Queue(WAITING)
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._write, name=name, daemon=True)

    def start(self, store: Store) -> None:
        """With what is unread. What has arrived since may be in it, too."""
        unread, ends = store.unread(self.rooms, self._read.ids)
        self.say(f"* welcome, {self.name}: {len(unread)} unread")
        for message in unread:
            self._show(message)
        self._read.ids |= ends
        self._thread.start()

    def offer(self, message: ChatMessage) -> None:
        try:
            self._waiting.put_nowait(message)
        except queue.Full:
            self.close()

    def say(self, line: str) -> None:
        with self._turn:
            self._connection.sendall(f"{line}\r\n".encode())

    def close(self) -> None:
        self._is_closed.set()

    def join(self) -> None:
        """Returns when all that was shown is committed."""
        if self._thread.is_alive():
            self._thread.join()
        self._read.close()

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            committed_at = time.monotonic()
            while not self._is_closed.is_set():
                with contextlib.suppress(queue.Empty):
                    self._show(self._waiting.get(timeout=0.1))
                if time.monotonic() > committed_at + COMMIT_S:
                    self._read.commit()
                    committed_at = time.monotonic()
        # Wakes the thread that waits for a command.
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RD)

    def _show(self, message: ChatMessage) -> None:
        if message.id > self._read.ids[message.partition]:
            if message.room in self.rooms:
                self.say(str(message))
            self._read.ids[message.partition] = message.id


class Delivery:
    """Every message of the topic is offered to everybody who is online."""

    def __init__(self, client: penstock.Client, bootstrap: str, store: Store) -> None:
        self._bootstrap = bootstrap
        self._store = store
        self._online: dict[str, Session] = {}
        client.subscribe(TOPIC, self._deliver, group="chat-server", ordered=True)
        client.start()

    @contextlib.contextmanager
    def session(self, name: str, connection: socket.socket) -> Iterator[Session]:
        """KafkaException if no broker answers."""
        read = ReadPositions(self._bootstrap, name)
        session = Session(name, self._store.rooms_of(name), read, connection)
        elsewhere = self._online.get(name)
        if elsewhere is not None:
            elsewhere.close()
        # From here on it is offered what is new, so nothing is missed between the database and what arrives.
        self._online[name] = session
        try:
            session.start(self._store)
            yield session
        finally:
            session.close()
            session.join()
            if self._online.get(name) is session:
                del self._online[name]

    def _deliver(self, message: penstock.Message) -> None:
        arrived = ChatMessage(
            partition=message.partition,
            id=message.offset + 1,
            room=(message.key or b"").decode(),
            text=(message.value or b"").decode(),
        )
        for session in list(self._online.values()):
            session.offer(arrived)
