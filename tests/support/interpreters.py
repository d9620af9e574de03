"""Python interpreters that are installed here, and virtual environments with the package installed from its wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KEPT_WHEELS = ROOT / ".cache" / "wheels"
"""What was downloaded once: asking the package index takes longer than everything else here."""

_PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--retries", "1"]
_PIP_S = 300
_OFFLINE = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError|Network is unreachable"
)


def supported_versions() -> list[str]:
    """Those that the package says it supports."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = "Programming Language :: Python :: 3."
    return [line.removeprefix(named[:-2]) for line in project["classifiers"] if line.startswith(named)]


def required_interpreter(version: str) -> Path:
    """An interpreter of this version: on the PATH, or where pyenv and uv keep theirs. A version that is not installed
    is skipped, also in CI: no package of the distribution brings them all.
    """
    places = [Path(folder) / f"python{version}" for folder in os.get_exec_path()]
    home = Path.home()
    pyenv = Path(os.environ.get("PYENV_ROOT", home / ".pyenv"))
    places += sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"))
    places += sorted((home / ".local/share/uv/python").glob(f"cpython-{version}.*/bin/python{version}"))
    for place in places:
        if place.exists() and _is_interpreter(place, version):
            return place
    pytest.skip(f"Python {version} is not installed")


def _is_interpreter(place: Path, version: str) -> bool:
    """pyenv puts names on the PATH that only say that the version is not chosen."""
    command = [str(place), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode == 0 and done.stdout.strip() == version


def build_wheel(folder: Path) -> Path:
    """The wheel of this checkout, built from a copy: a build leaves files beside the sources."""
    sources = folder / "sources"
    shutil.copytree(
        ROOT / "src" / "penstock", sources / "src" / "penstock", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    run_pip([*_PIP, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(sources)])
    (wheel,) = folder.glob("*.whl")
    return wheel


@dataclass(frozen=True)
class Environment:
    """A virtual environment outside of the checkout."""

    folder: Path

    @classmethod
    def make(cls, interpreter: Path, folder: Path, wheel: Path) -> Environment:
        """With the wheel and what it needs, in the versions that are known to work, all of them from wheels."""
        subprocess.run([interpreter, "-m", "venv", "--without-pip", folder], timeout=60, check=True)
        made = cls(folder)
        pip = (*_PIP, "--python", made.program("python"))
        wanted = ("--quiet", "--only-binary", ":all:", "--constraint", str(ROOT / "constraints.txt"), str(wheel))
        from_kept = (*pip, "install", "--no-compile", "--no-index", "--find-links", str(KEPT_WHEELS), *wanted)
        if subprocess.run(from_kept, capture_output=True, timeout=_PIP_S, check=False).returncode:
            run_pip([*pip, "download", "--dest", str(KEPT_WHEELS), *wanted])
            # The wheel that is tested is never one that was kept.
            (KEPT_WHEELS / wheel.name).unlink(missing_ok=True)
            run_pip(from_kept)
        return made

    def program(self, name: str) -> str:
        return str(self.folder / "bin" / name)


def run_pip(command: Sequence[str]) -> None:
    """Without a connection the test is skipped at a desk and fails in CI."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_S, check=False)
    if done.returncode == 0:
        return
    if _OFFLINE.search(done.stderr) and os.environ.get("CI") != "true":
        pytest.skip("packages cannot be downloaded")
    pytest.fail(f"{' '.join(command)}:\n{done.stderr}")
