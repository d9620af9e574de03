"""The pipeline in ten minutes: everything that the tutorial says is done, and what it says is printed is printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import BrokerFactory
from support.tutorial import ROOT, follow

pytestmark = pytest.mark.usefixtures("java")


def test_the_tutorial_of_the_pipeline_does_what_it_says(new_broker: BrokerFactory, tmp_path: Path) -> None:
    follow((ROOT / "docs" / "pipeline.md").read_text(), new_broker(), tmp_path)
