"""Jars of a project and all they need, by their coordinates, through Maven into a folder."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.servers.cached_folder import cached_folder
from bench.servers.packages import ensure_command
from bench.servers.process import ServerError

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>bench</groupId><artifactId>bench</artifactId><version>1</version>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""
_DEPENDENCY = "    <dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}</dependency>"
_NOTHING_ELSE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
_LIMIT_S = 600


def fetch_jars(folder: Path, coordinates: Sequence[str], *, alone: bool = False) -> Path:
    """The folder with the jars of `group:name:version`s; `alone`: without what they need. Java is there to run them."""
    ensure_command("java", "default-jre-headless")
    return cached_folder(folder / "libs", lambda libs: _copy(libs, coordinates, alone=alone))


def _copy(libs: Path, coordinates: Sequence[str], *, alone: bool) -> None:
    ensure_command("mvn", "maven")
    pom = libs.parent / "pom.xml"
    without = _NOTHING_ELSE if alone else ""
    dependencies = "\n".join(_DEPENDENCY.format(*each.split(":"), without) for each in coordinates)
    pom.write_text(_POM.format(dependencies=dependencies))
    command = ["mvn", "-B", "-q", "-f", str(pom), "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={libs}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    if done.returncode:
        raise ServerError(f"Maven could not resolve {', '.join(coordinates)}: {done.stdout[-400:]}")
