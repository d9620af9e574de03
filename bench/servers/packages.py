"""Commands from Debian's packages, installed when missing without letting that start a service."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from bench.servers.process import ServerError

_POLICY = Path("/usr/sbin/policy-rc.d")


def ensure_command(command: str, package: str) -> str:
    """The command's path; installs the package that brings it if need be and possible."""
    found = _find(command)
    if found:
        return found
    if not shutil.which("apt-get"):
        raise ServerError(f"{command} is missing and there is no apt-get to install {package}")
    prefix = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if prefix and not shutil.which("sudo"):
        raise ServerError(f"{command} is missing and installing {package} needs root")
    _install(prefix, package)
    found = _find(command)
    if not found:
        raise ServerError(f"{package} is installed but brings no {command}")
    return found


def _find(command: str) -> str | None:
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/lib/rabbitmq/bin"])
    return shutil.which(command, path=path)


def _install(prefix: list[str], package: str) -> None:
    # invoke-rc.d asks this script before it starts anything; 101 means no.
    ours = not _POLICY.exists()
    if ours:
        script = f"printf '#!/bin/sh\\nexit 101\\n' > {_POLICY} && chmod 755 {_POLICY}"
        subprocess.run([*prefix, "sh", "-c", script], check=False, timeout=30)
    try:
        quiet = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y", "--no-install-recommends"]
        subprocess.run([*prefix, "apt-get", "-q", "update"], capture_output=True, check=False, timeout=300)
        done = subprocess.run(
            [*prefix, *quiet, "install", package], capture_output=True, text=True, timeout=900, check=False
        )
        if done.returncode:
            raise ServerError(f"apt-get could not install {package}: {done.stderr[-300:]}")
    finally:
        if ours:
            subprocess.run([*prefix, "rm", "-f", str(_POLICY)], check=False, timeout=30)
