"""The disks of the chaos do what their names say."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.disks import Disks
from support.programs import environment

_DELAY_S = 0.05
_TIMED = """
import os, sys, time
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
for work in (lambda: os.pwrite(file, b"x", 0), lambda: os.fdatasync(file)):
    begun = time.monotonic()
    work()
    print(time.monotonic() - begun)
"""


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Disks]:
    with Disks(tmp_path) as made:
        yield made


def test_a_full_disk_takes_nothing_until_there_is_room(disks: Disks, tmp_path: Path) -> None:
    disks.prepare(1)
    if "full disk" in disks.missing:
        pytest.skip(disks.missing["full disk"])
    file = tmp_path / "broker-1/data/file"
    file.write_bytes(b"x" * 10_000)
    disks.fill(1, 0)
    with pytest.raises(OSError) as refused:
        file.with_name("other").write_bytes(b"x" * 10_000)
    assert refused.value.errno == errno.ENOSPC
    assert file.read_bytes() == b"x" * 10_000
    disks.make_room(1)
    file.with_name("other").write_bytes(b"x" * 10_000)


def test_a_slow_disk_delays_writes_and_syncs(disks: Disks, tmp_path: Path) -> None:
    slow = disks.prepare(1)
    if "slow disk" in disks.missing:
        pytest.skip(disks.missing["slow disk"])
    disks.slow_down(1, _DELAY_S, 2 * _DELAY_S)
    command = [sys.executable, "-c", _TIMED, str(tmp_path / "timed")]
    said = subprocess.run(command, env=environment(slow), capture_output=True, text=True, check=True).stdout
    write_s, sync_s = map(float, said.splitlines())
    assert write_s >= _DELAY_S and sync_s >= 2 * _DELAY_S
