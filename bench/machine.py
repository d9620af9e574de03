"""Facts about the machine that a reader needs to judge figures; nothing that names it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil


def facts() -> dict[str, str | int | float]:
    """Processor, memory, system, and how busy others kept it at the start."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "python": platform.python_version(),
        "load_average_at_start": round(os.getloadavg()[0], 2),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
