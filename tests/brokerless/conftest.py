"""Stores of every form; a test that takes `open_store` runs once with each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from penstock.brokerless.files.queue import open_folder
from penstock.brokerless.redis.queue import RedisQueue
from penstock.brokerless.redis.server import RedisServer
from penstock.brokerless.store import QueueStore
from support.queue_stores import OpenStore
from support.stores import RedisProcess

STORES = ["files", "redis"]


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

    makers = {"files": open_files, "redis": open_redis}
    return lambda: opened.enter_context(closing(makers[request.param]()))


@pytest.fixture
def store(open_store: OpenStore) -> QueueStore:
    return open_store()
