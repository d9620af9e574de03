"""Which Java Spark runs on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from penstock.pipeline.failure import PipelineError
from penstock.pipeline.java import java_home


def java_in(folder: Path) -> Path:
    """A Java that says what it was called with."""
    (folder / "bin").mkdir(parents=True)
    (folder / "lib").mkdir()
    java = folder / "bin" / "java"
    java.write_text('#!/bin/sh\nfor each do echo "$each"; done\n')
    java.chmod(0o755)
    return folder


def test_a_machine_without_java_is_told_the_two_ways_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="default-jre-headless") as told:
        java_home({"PATH": str(tmp_path)}, tmp_path, None)
    assert "pip install 'penstock[java]'" in str(told.value)


def test_the_machines_java_goes_before_that_of_the_package(tmp_path: Path) -> None:
    system, package = java_in(tmp_path / "system"), java_in(tmp_path / "package")
    assert java_home({"PATH": str(system / "bin")}, tmp_path / "work", package) is None
    assert java_home({"PATH": "", "JAVA_HOME": str(system)}, tmp_path / "work", package) is None


def test_a_java_home_without_java_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="there is no bin/java in it"):
        java_home({"PATH": "", "JAVA_HOME": str(tmp_path)}, tmp_path, None)


def test_the_packages_java_is_not_asked_for_the_module_it_lacks(tmp_path: Path) -> None:
    for _ in range(2):
        home = java_home({"PATH": ""}, tmp_path / "work", _package(tmp_path))
    assert home is not None
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Dx=a b", "Main"]
    said = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True, timeout=30)
    assert said.stdout.splitlines() == ["-Xmx1g", "-Dx=a b", "Main"]
    assert (home / "lib").is_symlink()


def _package(folder: Path) -> Path:
    package = folder / "package"
    return package if package.exists() else java_in(package)
