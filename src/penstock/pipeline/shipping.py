"""The package on its way to Spark's executors, where it need not be installed."""

from __future__ import annotations

import zipfile
from pathlib import Path

_PACKAGES = Path(__file__).parents[2]
_SHIPPED = ("penstock", "pyspark_penstock")
_KINDS = (".py", ".properties")


def zipped(folder: Path) -> Path:
    """A file that Python can import the package from; what it imports has to be installed there."""
    path = folder / "penstock.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in _SHIPPED:
            for file in sorted((_PACKAGES / name).rglob("*")):
                if file.suffix in _KINDS:
                    archive.write(file, file.relative_to(_PACKAGES))
    return path
