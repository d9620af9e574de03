"""The Grafana dashboard: an overview, then a row for each area with a panel for each metric of it.

What a panel shows follows from the metric's type (a counter as a rate, a histogram as quantiles), its unit and its
labels. `$job` is the cluster, `$instance` one or more of its brokers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from deploy.alert_rules import GROUP_LAG_SUM
from penstock.broker.metrics import catalogue
from penstock.broker.metrics.catalogue import FAMILIES, Area, Family, MetricKind, Unit

SCHEMA_VERSION = 39
"""Of Grafana 10 and 11; newer ones bring a dashboard up to date when they load it."""
WIDTH = 24
HEIGHT = 7
COLUMNS = 3
SHOWN = 10
"""Series of a panel whose labels are topics and partitions: those with the largest values."""

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_CHOSEN = 'job=~"$job", instance=~"$instance"'
_UNITS = {
    Unit.NONE: "short",
    Unit.BYTES: "bytes",
    Unit.SECONDS: "s",
    Unit.RECORDS: "short",
    Unit.TIMESTAMP: "dateTimeFromNow",
}
_RATE_UNITS = {Unit.NONE: "cps", Unit.BYTES: "Bps", Unit.SECONDS: "percentunit", Unit.RECORDS: "cps"}
_OF_THE_CLUSTER = (
    catalogue.OFFLINE_PARTITIONS,
    catalogue.PREFERRED_REPLICA_IMBALANCE,
    catalogue.REASSIGNING_PARTITIONS,
    catalogue.TOPICS,
)
"""Every broker tells the same of these."""


def render() -> str:
    return json.dumps(_dashboard(), indent=2) + "\n"


def _dashboard() -> dict[str, Any]:
    return {
        "uid": "penstock",
        "title": "Penstock",
        "description": "Written by make generated-files from the metrics' definitions.",
        "tags": ["penstock"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": list(_variables())},
        "panels": list(_numbered(_rows())),
    }


def _variables() -> Iterator[dict[str, Any]]:
    yield {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "hide": 0,
        "refresh": 1,
    }
    build = catalogue.BUILD_INFO.exposed
    for name, label, query, is_multi in (
        ("job", "Cluster", f"label_values({build}, job)", False),
        ("instance", "Broker", f'label_values({build}{{job=~"$job"}}, instance)', True),
    ):
        yield {
            "name": name,
            "label": label,
            "type": "query",
            "datasource": _SOURCE,
            "definition": query,
            "query": {"query": query, "refId": name},
            "current": {},
            "hide": 0,
            # When the time range changes too: brokers come and go.
            "refresh": 2,
            "sort": 1,
            "multi": is_multi,
            "includeAll": is_multi,
        }


def _rows() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    yield "Overview", list(_overview())
    for area in Area:
        panels = [_of_family(family) for family in FAMILIES if family.area is area]
        if area is Area.GROUPS:
            panels.insert(0, _of_series("Lag by group", f'topk({SHOWN}, {GROUP_LAG_SUM}{{job=~"$job"}})', "{{group}}"))
        yield area.value, panels


def _overview() -> Iterator[dict[str, Any]]:
    def one(title: str, expression: str, *, bad_from: float | None = None, unit: str = "short") -> dict[str, Any]:
        steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
        if bad_from is not None:
            steps.append({"color": "red", "value": bad_from})
        return {
            "type": "stat",
            "title": title,
            "datasource": _SOURCE,
            "targets": [_target(expression, "")],
            "fieldConfig": {
                "defaults": {"unit": unit, "thresholds": {"mode": "absolute", "steps": steps}},
                "overrides": [],
            },
            "options": {
                "colorMode": "value",
                "graphMode": "area",
                "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            },
        }

    job = 'job=~"$job"'
    free, size = catalogue.DISK_FREE_BYTES.exposed, catalogue.DISK_SIZE_BYTES.exposed
    yield one("Brokers alive", f'max({catalogue.BROKERS.exposed}{{{job}, state="alive"}})')
    yield one("Controllers", f"sum({catalogue.ACTIVE_CONTROLLER.exposed}{{{job}}})", bad_from=2)
    for family in (catalogue.OFFLINE_PARTITIONS, catalogue.UNDER_MIN_ISR_PARTITIONS):
        function = "max" if family in _OF_THE_CLUSTER else "sum"
        yield one(_title(family), f"{function}({family.exposed}{{{job}}})", bad_from=1)
    yield one(
        _title(catalogue.UNDER_REPLICATED_PARTITIONS),
        f"sum({catalogue.UNDER_REPLICATED_PARTITIONS.exposed}{{{job}}})",
        bad_from=1,
    )
    yield one(_title(catalogue.OFFLINE_LOGS), f"sum({catalogue.OFFLINE_LOGS.exposed}{{{job}}})", bad_from=1)
    yield one("Least disk room", f"min({free}{{{job}}} / {size}{{{job}}})", unit="percentunit")
    yield one("Largest lag of a group", f"max({GROUP_LAG_SUM}{{{job}}})")
    yield one("Requests", f"sum(rate({catalogue.REQUESTS.exposed}{{{job}}}[$__rate_interval]))", unit="reqps")


def _of_family(family: Family) -> dict[str, Any]:
    by = ["instance", *family.labels]
    series = f"{family.exposed}{{{_CHOSEN}}}"
    legend = " ".join(f"{{{{{label}}}}}" for label in by)
    unit = _UNITS[family.unit]
    if family is catalogue.BUILD_INFO:
        return _of_series(_title(family), series, "{{instance}} {{version}} Python {{python}}", family, unit)
    if family is catalogue.PROCESS_START_TIME_SECONDS:
        # As an age: the moment is too far from zero to be drawn.
        return _of_series("Process uptime", f"time() - {series}", legend, family, "s")
    if family.kind is MetricKind.HISTOGRAM:
        return _of_histogram(family)
    if family.kind is MetricKind.COUNTER:
        expression = f"sum by ({', '.join(by)}) (rate({series}[$__rate_interval])) > 0"
        return _of_series(_title(family), expression, legend, family, _RATE_UNITS[family.unit])
    if family in _OF_THE_CLUSTER:
        return _of_series(_title(family), f'max by (job) ({family.exposed}{{job=~"$job"}})', "{{job}}", family, unit)
    if "topic" in family.labels:
        series = f"topk({SHOWN}, {series})"
    return _of_series(_title(family), series, legend, family, unit)


def _of_histogram(family: Family) -> dict[str, Any]:
    by = ", ".join(("le", *family.labels))
    buckets = f"sum by ({by}) (rate({family.exposed}_bucket{{{_CHOSEN}}}[$__rate_interval]))"
    legend = " ".join(f"{{{{{label}}}}}" for label in family.labels)
    quantile = 0.99
    expression = f"histogram_quantile({quantile}, {buckets})"
    title = f"{_title(family)}, 99th percentile"
    return _of_series(title, expression, legend or "p99", family, _UNITS[family.unit])


def _of_series(
    title: str, expression: str, legend: str, family: Family | None = None, unit: str = "short"
) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": title,
        "description": "" if family is None else f"{family.exposed}: {family.documentation}",
        "datasource": _SOURCE,
        "targets": [_target(expression, legend)],
        "fieldConfig": {"defaults": {"unit": unit, "min": 0, "custom": {"fillOpacity": 10}}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }


def _target(expression: str, legend: str) -> dict[str, Any]:
    return {"refId": "A", "datasource": _SOURCE, "expr": expression, "legendFormat": legend, "range": True}


def _title(family: Family) -> str:
    words = family.name.removeprefix("penstock_").removesuffix("_seconds").replace("_", " ")
    title = words[0].upper() + words[1:]
    return title.replace(" isr", " ISR").replace("Isr ", "ISR ").replace(" cpu", " CPU").replace(" fds", " FDs")


def _numbered(rows: Iterator[tuple[str, list[dict[str, Any]]]]) -> Iterator[dict[str, Any]]:
    """Panels with ids and places, under the heading of their row."""
    number, top = 0, 0
    for heading, panels in rows:
        number += 1
        place = {"h": 1, "w": WIDTH, "x": 0, "y": top}
        yield {"id": number, "type": "row", "title": heading, "collapsed": False, "gridPos": place, "panels": []}
        top += 1
        width = WIDTH // COLUMNS
        for index, panel in enumerate(panels):
            number += 1
            column, line = index % COLUMNS, index // COLUMNS
            height = HEIGHT
            place = {"h": height, "w": width, "x": column * width, "y": top + line * height}
            yield {"id": number, "gridPos": place, **panel}
        top += -(-len(panels) // COLUMNS) * HEIGHT
