"""Stores of every form; a test that takes `open_store` runs once with each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from penstock.brokerless import consumer
from penstock.brokerless.files.queue import open_folder
from penstock.brokerless.memory.shared import SharedMemoryStore
from penstock.brokerless.redis.queue import RedisQueue
from penstock.brokerless.redis.server import RedisServer
from penstock.brokerless.store import QueueStore
from penstock.brokerless.tcp.client import RemoteStore
from penstock.brokerless.tcp.queue import ServedQueue
from support.forms import MAKERS, Opened
from support.queue_stores import OpenStore
from support.stores import RedisProcess

STORES = ["memory", "files", "redis", "tcp"]


@pytest.fixture(scope="session")
def redis_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    process = RedisProcess(tmp_path_factory.mktemp("redis") / "data").start()
    yield process
    process.kill()


@pytest.fixture
def opened(request: pytest.FixtureRequest) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(params=STORES)
def open_store(request: pytest.FixtureRequest, tmp_path: Path, opened: ExitStack) -> OpenStore:
    def open_files() -> QueueStore:
        return open_folder(tmp_path / "queue")

    def open_redis() -> QueueStore:
        url = request.getfixturevalue("redis_process").url
        return RedisQueue(RedisServer(url, url, tmp_path.name))

    def open_memory() -> QueueStore:
        return SharedMemoryStore.opened(tmp_path.name, partitions=1, max_messages=1000)

    def open_tcp() -> QueueStore:
        served: ServedQueue | None = getattr(opened, "served", None)
        if served is None:
            served = ServedQueue("127.0.0.1", 0)
            opened.callback(served.close)
            vars(opened)["served"] = served
        return RemoteStore("127.0.0.1", served.port)

    makers = {"memory": open_memory, "files": open_files, "redis": open_redis, "tcp": open_tcp}
    return lambda: opened.enter_context(closing(makers[request.param]()))


@pytest.fixture
def store(open_store: OpenStore) -> QueueStore:
    return open_store()


@pytest.fixture
def form(request: pytest.FixtureRequest, tmp_path: Path, opened: ExitStack) -> Opened:
    """A new queue of the form that a test asks for; see `support.forms.promised`."""
    return Opened(request.param, MAKERS[request.param](request, tmp_path, opened), opened)


@pytest.fixture
def quick_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members of groups without a broker are missed after a second and a half."""
    monkeypatch.setattr(consumer, "SESSION_MS", 1_500)
    monkeypatch.setattr(consumer, "HEARTBEAT_MS", 200)
