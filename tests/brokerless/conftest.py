"""Stores of every form; a test that takes `open_store` runs once with each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from penstock.brokerless.files.queue import open_folder
from penstock.brokerless.store import QueueStore
from support.queue_stores import OpenStore

STORES = ["files"]


@pytest.fixture
def opened(request: pytest.FixtureRequest) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(params=STORES)
def open_store(request: pytest.FixtureRequest, tmp_path: Path, opened: ExitStack) -> OpenStore:
    def open_files() -> QueueStore:
        return open_folder(tmp_path / "queue")

    makers = {"files": open_files}
    return lambda: opened.enter_context(closing(makers[request.param]()))


@pytest.fixture
def store(open_store: OpenStore) -> QueueStore:
    return open_store()
