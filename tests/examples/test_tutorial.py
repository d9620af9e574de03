"""The tutorial: everything that it says is done, and what it says is printed is printed."""

from __future__ import annotations

from pathlib import Path

from conftest import BrokerFactory
from support.tutorial import ROOT, follow


def test_the_tutorial_does_what_it_says(new_broker: BrokerFactory, tmp_path: Path) -> None:
    follow((ROOT / "docs" / "tutorial.md").read_text(), new_broker(), tmp_path)
