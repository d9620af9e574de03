"""What a finished command said."""

from __future__ import annotations

import json
from subprocess import CompletedProcess
from typing import Any


def said(done: CompletedProcess[bytes]) -> str:
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""
    return done.stdout.decode()


def told(done: CompletedProcess[bytes]) -> Any:
    return json.loads(said(done))


def complaint(done: CompletedProcess[bytes], code: int = 1) -> str:
    """The one line that a failed command leaves on standard error."""
    assert done.returncode == code, (done.stdout, done.stderr)
    text = done.stderr.decode()
    assert "Traceback" not in text
    assert text.startswith("penstock: ")
    assert text.count("\n") == 1
    return text
