"""The files in `deploy/`, and the metrics that they speak of."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "penstock.rules.yml"
PROMETHEUS = DEPLOY / "prometheus" / "prometheus.yml"
DASHBOARD = DEPLOY / "grafana" / "penstock.json"

_SERIES = re.compile(r"\b(?:penstock|process)_[a-z_]+\b")


def rules() -> list[dict[str, Any]]:
    """Recorded series and alerts."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    """Those of the dashboard that show something."""
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[tuple[str, str]]:
    """Everything that Prometheus is asked, with the name of who asks."""
    for rule in rules():
        yield rule.get("alert") or rule["record"], rule["expr"]
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in json.loads(DASHBOARD.read_text())["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], re.fullmatch(r"label_values\((.*), \w+\)", variable["definition"])[1]  # type: ignore[index]


def series() -> set[str]:
    """The names of all series that are asked for."""
    return {name for _, expression in expressions() for name in _SERIES.findall(expression)}
