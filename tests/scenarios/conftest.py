"""Stories in files: compared with what happens, or, with an option, written down as they go today."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.words import GoesAsWritten, Story, tell


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-scenarios",
        action="store_true",
        help="write what happens into the scenario files instead of comparing it",
    )


@pytest.fixture
def goes_as_written(request: pytest.FixtureRequest) -> GoesAsWritten:
    def compare(path: Path, story: Story) -> None:
        written = path.read_text()
        told = tell(written, story)
        if request.config.getoption("--rewrite-scenarios", default=False):
            path.write_text(told)
        else:
            assert told == written

    return compare
