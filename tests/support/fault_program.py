"""What programs that inject faults share: their options, and how they end."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Protocol


class Report(Protocol):
    """What happened; printed at the end."""

    @property
    def is_good(self) -> bool: ...


def parser_of(program: str, description: str | None, *, lease_s: float, overlap: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5, help="how long faults are injected")
    parser.add_argument("--seed", type=int, default=1, help="chooses what, whom and for how long")
    parser.add_argument("--lease", type=float, default=lease_s, help="of brokers, in seconds; faults last as long")
    parser.add_argument("--overlap", type=int, default=overlap, help="how many faults may happen at the same time")
    parser.add_argument("--only", action="append", default=[], help="a fault, or a kind; may be repeated")
    parser.add_argument("--folder", type=Path, help="for logs and data; else only those of a run that failed are kept")
    return parser


def folder_of(given: argparse.Namespace) -> Path:
    return given.folder or Path(tempfile.mkdtemp(prefix="penstock-faults-"))


def end(report: Report, folder: Path, given: argparse.Namespace) -> int:
    """Prints the report; the exit status."""
    print(report)
    if not report.is_good:
        print(f"the brokers' logs and data are in {folder}")
        return 1
    if given.folder is None:
        shutil.rmtree(folder)
    return 0
