"""The reference pages say what the code says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name

import pytest

import penstock
import penstock.testing

ROOT = Path(__file__).parents[2]


def test_generated_pages_follow_the_code() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "docgen", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_sdk_reference_has_every_public_name() -> None:
    page = (ROOT / "docs" / "reference" / "sdk.md").read_text()
    documented = set(re.findall(r"^::: penstock\.([A-Z]\w+)$", page, re.MULTILINE))
    assert documented == {
        name for name in dir(penstock) if name[0].isupper() and name != "TYPE_CHECKING" and name != "Any"
    }
    stubs = set(re.findall(r"^::: penstock\.testing\.([A-Z]\w+)$", page, re.MULTILINE))
    assert stubs == {name for name in dir(penstock.testing) if name[0].isupper()}
    for path in re.findall(r"^::: (\S+)$", page, re.MULTILINE):
        assert resolve_name(path).__doc__


@pytest.mark.parametrize("name", ["guarantees.md", "internals/security.md"])
def test_every_promise_names_tests_that_exist(name: str) -> None:
    page = (ROOT / "docs" / name).read_text()
    missing, module = [], ""
    for path, test in re.findall(r"`((?:[\w/]*test_\w+\.py)?)(?:::(test_\w+))?`", page):
        module = path or module
        file = ROOT / "tests" / module
        if (path and not file.exists()) or (test and f"def {test}(" not in file.read_text()):
            missing.append(f"{module}::{test}")
    assert module
    assert missing == []
