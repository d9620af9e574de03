"""Addresses that cannot be opened, and clients of asyncio."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

import penstock
import penstock.aio
from penstock.extras import MissingExtraError
from support.forms import Opened, promised


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("file://relative/folder", "whole path"),
        ("file:///tmp/x?sync=sometimes", "sync must be one of never, always"),
        ("file:///tmp/x?partitions=0", "partitions must be a whole number"),
        ("file:///tmp/x?fsync=always", "no option fsync"),
        ("redis://127.0.0.1:1/0?prefix=a{b", "prefix must be"),
        ("redis://127.0.0.1:1/0?trim=all", "trim must be one of"),
        ("redis://127.0.0.1:port/0", "redis://127.0.0.1:port/0"),
        ("tcp://127.0.0.1", "expected an address such as"),
        ("tcp://127.0.0.1:99999", "tcp://127.0.0.1:99999"),
        ("tcp://127.0.0.1:7000/topic", "expected an address such as"),
        ("tcp://127.0.0.1:7000?serve=yes", "serve takes no value"),
        ("tcp://127.0.0.1:7000?max_messages=5", "no option max_messages"),
        ("memory://?max_bytes=none", "max_bytes must be a whole number"),
    ],
)
def test_wrong_address_says_what_is_wrong(address: str, said: str) -> None:
    with pytest.raises(penstock.InvalidInputError, match=said):
        penstock.open(address)


def test_password_is_not_in_errors() -> None:
    with pytest.raises(penstock.InvalidInputError) as refused:
        penstock.open("redis://me:secret@127.0.0.1:port/0")
    assert "secret" not in str(refused.value)


def test_missing_driver_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("penstock.brokerless.redis")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'penstock\[redis\]'"):
        penstock.open("redis://127.0.0.1:1/0")


def test_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(penstock.ClientError, match=f"{tmp_path}/file/queue"):
        penstock.open(f"file://{tmp_path}/file/queue")


@promised("asyncio")
def test_coroutines_send_and_handle(form: Opened, topic: str) -> None:
    async def main() -> None:
        heard: asyncio.Queue[bytes | None] = asyncio.Queue()

        async def handle(message: penstock.Message) -> None:
            await heard.put(message.value)

        async with penstock.aio.open(form.address) as client:
            client.subscribe(topic, handle, group=topic)
            await client.start()
            await client.send(topic, b"one")
            async with asyncio.timeout(60):
                assert await heard.get() == b"one"

    asyncio.run(main())
