"""The option that writes down what scenarios give today."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-scenarios",
        action="store_true",
        help="write what happens into the scenario files instead of comparing it",
    )
