"""`python -m tests.bridge`: the program for the large run, in small."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from support.programs import dying_with_us, environment

ROOT = Path(__file__).parents[2]
RUN_S = 300


def said_by(*arguments: str) -> str:
    command = [sys.executable, "-m", "tests.bridge", "--server", "penstock", "--database", "sqlite", *arguments]
    done = subprocess.run(
        dying_with_us(command), cwd=ROOT, capture_output=True, text=True, timeout=RUN_S, env=environment(), check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_program_counts_what_killed_bridges_lose_repeat_and_send_early() -> None:
    said = said_by("--messages", "200", "--minutes", "0.1", "--max-delay", "2", "--every", "1.5")
    assert "200 sent, 0 lost, 0 repeated, 0 early; " in said


def test_the_program_compares_batches_with_one_row_at_a_time() -> None:
    said = said_by("--compare", "--messages", "500")
    assert re.search(r"batched \d+ messages/s, one row at a time \d+/s: \d+\.\d times", said)
