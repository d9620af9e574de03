"""A report as one HTML page that needs nothing else: no network, no scripts; light and dark."""

from __future__ import annotations

from datetime import datetime
from html import escape
from typing import Any

from penstock.pipeline.reports.charts import draw
from penstock.pipeline.reports.results import Result, Section, figure_json
from penstock.pipeline.reports.runner import Report

MOST_SHOWN = 200
"""A table on the page has so many rows; all are in the lake and in the JSON."""

_STYLE = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #ffffff; --ink: #16202c; --soft: #5b6776; --line: #dfe4ea;
  --c0: #2a78d6; --c1: #1baf7a; --c2: #eda100; --c3: #4a3aa7; --c4: #eb6834; --c5: #e34948; --c6: #e87ba4;
  --c7: #8a94a3; }
@media (prefers-color-scheme: dark) { :root { --page: #0f151c; --card: #18212b; --ink: #e6ebf1; --soft: #95a2b2;
  --line: #2a3643; --c0: #3987e5; --c1: #199e70; --c2: #c98500; --c3: #9085e9; --c4: #d95926; --c5: #e66767;
  --c6: #d55181; --c7: #76828f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 19px; margin: 0 0 6px; } h3 { font-size: 14px; margin: 0; }
p { margin: 0; } .soft, small { color: var(--soft); } small { font-weight: 400; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 22px 24px;
  margin-top: 18px; }
nav { display: flex; flex-wrap: wrap; gap: 6px 18px; margin-top: 14px; } a { color: var(--c0); text-decoration: none; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin-top: 20px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 12px 16px; }
.tile b { display: block; font-size: 24px; font-weight: 600; font-variant-numeric: tabular-nums; }
figure { margin: 18px 0 0; } figcaption { font-weight: 600; font-size: 14px; margin-bottom: 6px; }
svg { display: block; width: 100%; height: auto; overflow: visible; } svg text { fill: var(--ink); font-size: 12px; }
svg .axis, svg .value { fill: var(--soft); font-variant-numeric: tabular-nums; } svg .grid { stroke: var(--line); }
svg .line { fill: none; stroke-width: 2; stroke-linejoin: round; } svg .span { stroke: var(--soft); stroke-width: 2; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; margin-bottom: 6px; font-size: 13px; }
.legend i { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 6px; }
details { margin-top: 14px; border-top: 1px solid var(--line); padding-top: 10px; } summary { cursor: pointer; }
.scroll { overflow-x: auto; margin-top: 10px; } table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td { text-align: left; padding: 5px 14px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td { max-width: 420px; overflow-wrap: anywhere; }
"""
_COLOURS = "".join(
    f"svg .c{n} {{ fill: var(--c{n}); }} svg .s{n} {{ stroke: var(--c{n}); }} i.c{n} {{ background: var(--c{n}); }}\n"
    for n in range(8)
)


def page(report: Report) -> str:
    """The whole page."""
    title = "Penstock report"
    links = "".join(f'<a href="#{each.name}">{escape(each.title)}</a>' for each in report.sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}{_COLOURS}</style></head><body><main>"
        f'<h1>{title}</h1><p class="soft">{escape(_about(report))}</p>'
        f'<div class="tiles">{_tiles(report)}</div><nav>{links}</nav>'
        f"{''.join(map(_section, report.sections))}</main></body></html>\n"
    )


def as_json(report: Report, most_rows: int | None = None) -> dict[str, Any]:
    """The same for the console and for scripts; a table that has more than so many rows is cut."""
    return {
        "at": _time(report.at),
        "since": _time(report.window.since),
        "until": _time(report.window.until),
        "topics": list(report.topics),
        "sections": [
            {
                "name": each.name,
                "title": each.title,
                "note": each.note,
                "tables": [result.as_json(most_rows) for result in each.results],
                "figures": [figure_json(figure) for figure in each.figures],
            }
            for each in report.sections
        ],
    }


def _about(report: Report) -> str:
    since = "the beginning" if report.window.since is None else f"{report.window.since:%Y-%m-%d %H:%M} UTC"
    until = "now" if report.window.until is None else f"{report.window.until:%Y-%m-%d %H:%M} UTC"
    topics = f"{len(report.topics)} topics" if len(report.topics) > 5 else ", ".join(report.topics)
    return f"{topics}; from {since} to {until}; computed {report.at:%Y-%m-%d %H:%M} UTC"


def _tiles(report: Report) -> str:
    """The few numbers to look at first."""
    found = {result.name: result.rows for result in report.results}
    tiles = []
    if "sizes" in found:
        tiles.append(("messages", f"{sum(row['messages'] for row in found['sizes']):,}"))
        tiles.append(("key, value and headers", _bytes(sum(row["bytes"] for row in found["sizes"]))))
        tiles.append(("topics with messages", f"{len(found['sizes'])}"))
    if "failures" in found:
        dead = sum(row["messages"] for row in found["failures"] if row["kind"] == "dead")
        tiles.append(("dead letters", f"{dead:,}"))
    if "lag_now" in found:
        tiles.append(("lag of all groups", f"{sum(row['lag'] for row in found['lag_now']):,}"))
    if "reconciliation" in found:
        missing = sum(row["biz_ids"] for row in found["reconciliation"] if row["outcome"] == "missing")
        tiles.append(("missing biz-ids", f"{missing:,}"))
    return "".join(f'<div class="tile"><b>{value}</b><span class="soft">{name}</span></div>' for name, value in tiles)


def _section(section: Section) -> str:
    figures = "".join(draw(figure) for figure in section.figures)
    has_rows = any(result.table.num_rows for result in section.results)
    nothing = (
        "" if has_rows else '<p class="soft" style="margin-top:12px"><b>Nothing of the kind in this window.</b></p>'
    )
    tables = "".join(_table(result) for result in section.results if result.table.num_rows)
    return (
        f'<section id="{section.name}"><h2>{escape(section.title)}</h2>'
        f'<p class="soft">{escape(section.note)}</p>{nothing}{figures}{tables}</section>'
    )


def _table(result: Result) -> str:
    rows = result.rows
    names = result.table.column_names
    numeric = {name for name in names if any(isinstance(row[name], int | float) for row in rows[:MOST_SHOWN])}
    head = "".join(f"<th{_class(name in numeric)}>{escape(name.replace('_', ' '))}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td{_class(name in numeric)}>{escape(_cell(row[name]))}</td>" for name in names) + "</tr>"
        for row in rows[:MOST_SHOWN]
    )
    left_out = len(rows) - MOST_SHOWN
    more = f'<p class="soft">and {left_out:,} more rows, in the JSON and in the lake</p>' if left_out > 0 else ""
    cut = '<p class="soft">Only the first rows were computed: there are too many.</p>' if result.is_cut else ""
    return (
        f"<details><summary>{escape(result.title)} <small>{len(rows):,} rows</small></summary>"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        f"{more}{cut}</details>"
    )


def _class(is_number: bool) -> str:
    return ' class="number"' if is_number else ""


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def _bytes(size: int) -> str:
    for factor, unit in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} B"


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")
