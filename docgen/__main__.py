"""Write the reference pages that follow from the code: `python -m docgen [--check]`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from deploy.generated import ROOT, write_or_check

from docgen import cli_page, metrics_page, permissions_page, settings_page


def generated() -> Iterator[tuple[Path, str]]:
    """Every generated page with its text."""
    folder = ROOT / "docs" / "reference"
    yield folder / "cli.md", cli_page.render()
    yield folder / "metrics.md", metrics_page.render()
    yield folder / "permissions.md", permissions_page.render()
    yield folder / "settings.md", settings_page.render()


if __name__ == "__main__":
    sys.exit(write_or_check(generated(), command="python -m docgen", description=__doc__))
