"""Writing generated files, or checking that they are up to date."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]


def write_or_check(files: Iterable[tuple[Path, str]], *, command: str, description: str | None) -> int:
    """Write each file that differs from its generated text. With `--check`, report it and return 1 instead."""
    parser = argparse.ArgumentParser(prog=command, description=description)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is out of date")
    check = parser.parse_args().check
    status = 0
    for path, text in files:
        if path.exists() and path.read_text() == text:
            continue
        name = path.relative_to(ROOT)
        if check:
            print(f"{name} is out of date: run make generated-files", file=sys.stderr)
            status = 1
        else:
            path.write_text(text)
            print(f"wrote {name}")
    return status
