"""Write the dashboard and the alert rules from the definitions of the metrics: `python -m deploy [--check]`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from deploy import alert_rules, dashboard
from deploy.generated import ROOT, write_or_check


def generated() -> Iterator[tuple[Path, str]]:
    """Every generated file with its text."""
    yield ROOT / "deploy" / "grafana" / "penstock.json", dashboard.render()
    yield ROOT / "deploy" / "prometheus" / "penstock.rules.yml", alert_rules.render()


if __name__ == "__main__":
    sys.exit(write_or_check(generated(), command="python -m deploy", description=__doc__))
