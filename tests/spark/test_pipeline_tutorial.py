"""The pipeline in ten minutes: everything that the tutorial says is done, and what it says is printed is printed."""

from __future__ import annotations

from pathlib import Path

from conftest import BrokerFactory
from support.class_archive import quick_jvm
from support.programs import required_program
from support.tutorial import ROOT, follow


def test_the_tutorial_of_the_pipeline_does_what_it_says(new_broker: BrokerFactory, tmp_path: Path) -> None:
    required_program("java")
    follow((ROOT / "docs" / "pipeline.md").read_text(), new_broker(), tmp_path, {"JAVA_TOOL_OPTIONS": quick_jvm()})
