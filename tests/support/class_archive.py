"""Spark's classes in a file that a JVM maps into memory, so that it need not load and verify them: a third of the CPU.

The first test that needs the file makes it, for the Java and the Spark that are installed; other workers wait for it.
A JVM that it does not fit ignores it. Java's documentation calls this class data sharing.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from support.programs import environment, required_program

_FOLDER = Path(__file__).parents[2] / ".cache"
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
"""Compiling what runs once costs more than it saves. What a JVM logs would stand among what a command prints."""
_MAKING_S = 300
_JAVA = r"""#!/bin/sh
case " $* " in
    *.launcher.Main\ *) ;;
    *.SparkSubmit\ * | *.CoarseGrainedExecutorBackend\ *) unset SPARK_HOME;;
esac
exec "{java}" {options} "$@"
"""
"""Spark that knows its home puts a zip of its own before the path of its Python processes: each would compile what it
imports from there, which takes five times as long as the import. Without it they import what is installed.
"""
_USE_SPARK = """
import sys
from pathlib import Path
from penstock.pipeline.session import SparkOptions, start
folder, options = Path(sys.argv[1]), sys.argv[2]
session = start("archive", SparkOptions(folder, "local[2]", "700m", {"spark.driver.defaultJavaOptions": options}))
frame = session.createDataFrame([(number, str(number)) for number in range(9)], "number int, name string")
frame.groupBy("name").count().orderBy("name").write.parquet(str(folder / "table"))
assert session.read.parquet(str(folder / "table")).count() == 9
gateway = session.sparkContext._gateway
session.stop()
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()
"""


@contextmanager
def quick_spark(folder: Path) -> Iterator[None]:
    """Until the end, every Spark that is started here is quick to start, also one that takes no options."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(_JAVA.format(java=required_program("java"), options=quick_jvm()))
    java.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(folder))
        yield


@functools.cache
def quick_jvm() -> str:
    """Options of a JVM for Spark that lives for seconds."""
    archive = _FOLDER / f"spark-classes-{_fingerprint()}.jsa"
    if not archive.exists():
        _FOLDER.mkdir(exist_ok=True)
        with (_FOLDER / "spark-classes.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not archive.exists():
                _make(archive)
    return f"{_SHORT_LIVED} -XX:SharedArchiveFile={archive}"


def _fingerprint() -> str:
    """Of what has to be the same when the archive is used: the JVM, and where Spark's jars are and since when."""
    jars = Path(pyspark.__file__).parent / "jars"
    version = subprocess.run([required_program("java"), "-version"], capture_output=True, check=True).stderr
    return hashlib.sha256(b"%s %s %d" % (version, bytes(jars), jars.stat().st_mtime_ns)).hexdigest()[:12]


def _make(archive: Path) -> None:
    for older in _FOLDER.glob("spark-classes-*.jsa"):
        older.unlink()
    with tempfile.TemporaryDirectory() as folder:
        made = archive.with_suffix(".new")
        options = f"{_SHORT_LIVED} -XX:ArchiveClassesAtExit={made}"
        command = [sys.executable, "-c", _USE_SPARK, folder, options]
        done = subprocess.run(command, capture_output=True, env=environment(), timeout=_MAKING_S, check=False)
        assert done.returncode == 0, done.stderr.decode()
    os.replace(made, archive)
