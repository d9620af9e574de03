"""Figures as SVG: drawn here, inline, in colours that the page decides."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from html import escape

from penstock.pipeline.reports.results import Bars, Columns, Figure, Lines, Spans

WIDTH = 960
COLOURS = 8
"""The page has so many; what comes after is drawn in the last."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 12, 28
_PLOT_HEIGHT = 220
_ROW_HEIGHT = 26
_NAMES_WIDTH = 300
_NAME_CHARS = 44
_TICKS = 4
_STEP_LABELS = 8
_GAP = 2
_SPAN_COLOURS = (0, 2, 5)


def draw(figure: Figure) -> str:
    """A figure with its title and, if it has several colours, what they mean."""
    match figure:
        case Columns():
            body, names = _columns(figure), list(enumerate(figure.parts))
        case Lines():
            body, names = _lines(figure), list(enumerate(figure.series))
        case Bars():
            body, names = _bars(figure), []
        case Spans():
            body, names = _spans(figure), list(zip(_SPAN_COLOURS, ("50 %", "90 %", "99 %"), strict=True))
    legend = "".join(
        f'<span class="name"><i class="c{_colour(number)}"></i>{escape(name)}</span>' for number, name in names
    )
    shown = f'<div class="legend">{legend}</div>' if len(names) > 1 else ""
    title = f"{escape(figure.title)} <small>{escape(figure.unit)}</small>"
    return f"<figure><figcaption>{title}</figcaption>{shown}{body}</figure>"


def short(value: float) -> str:
    """A number that fits on an axis."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{unit}"
    return f"{value:.3g}"


def ticks(highest: float) -> list[float]:
    """Round numbers from zero to at least the highest."""
    if highest <= 0:
        return [0.0, 1.0]
    raw = highest / _TICKS
    power = 10 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * (1 - 1e-9))
    count = math.ceil(highest / step - 1e-9)
    return [round(step * number, 10) for number in range(count + 1)]


def _columns(figure: Columns) -> str:
    count = len(figure.steps)
    sums = [sum(values[number] for values in figure.parts.values()) for number in range(count)]
    marks = ticks(max(sums, default=0))
    room = (WIDTH - _LEFT - _RIGHT) / count
    wide = max(1.0, min(48.0, room - _GAP))
    parts = [_grid(marks, _steps(figure.steps, room))]
    for number in range(count):
        x = _LEFT + room * number + (room - wide) / 2
        below = 0.0
        for order, (name, values) in enumerate(figure.parts.items()):
            value = values[number]
            if value <= 0:
                continue
            top, foot = _y(below + value, marks[-1]), _y(below, marks[-1])
            # A line of the background between stacked parts keeps them apart.
            height = max(1.0, foot - top - (1 if below else 0))
            told = f"{figure.steps[number]}: {value:,.0f} {figure.unit}" + (
                f", {name}" if len(figure.parts) > 1 else ""
            )
            parts.append(
                f'<rect class="c{_colour(order)}" x="{x:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{height:.1f}" '
                f'rx="2"><title>{escape(told)}</title></rect>'
            )
            below += value
    return _svg(_TOP + _PLOT_HEIGHT + _BOTTOM, parts, figure.title)


def _lines(figure: Lines) -> str:
    moments = sorted({moment for points in figure.series.values() for moment, _ in points})
    first, last = moments[0], moments[-1]
    span = (last - first).total_seconds() or 1.0
    marks = ticks(max(value for points in figure.series.values() for _, value in points))

    def x(moment: datetime) -> float:
        share = (moment - first).total_seconds() / span if last > first else 0.5
        return _LEFT + share * (WIDTH - _LEFT - _RIGHT)

    labels = [(x(moment), moment.strftime("%m-%d %H:%M")) for moment in _some(moments, _STEP_LABELS)]
    parts = [_grid(marks, labels)]
    for order, (name, points) in enumerate(figure.series.items()):
        path = " ".join(f"{x(moment):.1f},{_y(value, marks[-1]):.1f}" for moment, value in points)
        parts.append(f'<polyline class="line s{_colour(order)}" points="{path}"/>')
        for moment, value in points:
            told = f"{name}, {moment:%Y-%m-%d %H:%M:%S}: {value:,.0f} {figure.unit}"
            parts.append(
                f'<circle class="c{_colour(order)}" cx="{x(moment):.1f}" cy="{_y(value, marks[-1]):.1f}" r="4">'
                f"<title>{escape(told)}</title></circle>"
            )
    return _svg(_TOP + _PLOT_HEIGHT + _BOTTOM, parts, figure.title)


def _bars(figure: Bars) -> str:
    highest = max((value for _, value in figure.values), default=0) or 1
    room = WIDTH - _NAMES_WIDTH - 90
    parts = []
    for number, (name, value) in enumerate(figure.values):
        y = number * _ROW_HEIGHT
        long = max(2.0, room * value / highest)
        told = escape(f"{name}: {value:,.0f} {figure.unit}")
        parts.append(
            f"{_name(name, y)}"
            f'<rect class="c0" x="{_NAMES_WIDTH}" y="{y + 5}" width="{long:.1f}" height="16" rx="3">'
            f"<title>{told}</title></rect>"
            f'<text class="value" x="{_NAMES_WIDTH + long + 8:.1f}" y="{y + 17}">{value:,.0f}</text>'
        )
    return _svg(len(figure.values) * _ROW_HEIGHT + 4, parts, figure.title)


def _spans(figure: Spans) -> str:
    """From the middle over the slow tenth to the slow hundredth, on a scale of powers of ten that begins at one."""
    highest = max(worst for *_, worst in figure.values)
    powers = max(1, math.ceil(math.log10(max(10.0, highest))))
    room = WIDTH - _NAMES_WIDTH - 40

    def x(value: float) -> float:
        return _NAMES_WIDTH + room * math.log10(max(1.0, value)) / powers

    height = len(figure.values) * _ROW_HEIGHT
    parts = []
    for power in range(powers + 1):
        at = x(10**power)
        parts.append(f'<line class="grid" x1="{at:.1f}" y1="0" x2="{at:.1f}" y2="{height}"/>')
        label = f"{short(10**power)} {figure.unit}" + (" or less" if power == 0 else "")
        parts.append(f'<text class="axis" text-anchor="middle" x="{at:.1f}" y="{height + 16}">{escape(label)}</text>')
    for number, (name, middle, slow, worst) in enumerate(figure.values):
        y = number * _ROW_HEIGHT + _ROW_HEIGHT / 2
        told = f"{name}: 50 % {middle:,.0f}, 90 % {slow:,.0f}, 99 % {worst:,.0f} {figure.unit}"
        parts.append(_name(name, number * _ROW_HEIGHT))
        parts.append(
            f"<g><title>{escape(told)}</title>"
            f'<line class="span" x1="{x(middle):.1f}" y1="{y}" x2="{x(worst):.1f}" y2="{y}"/>'
        )
        parts += [
            f'<circle class="c{colour}" cx="{x(value):.1f}" cy="{y}" r="{radius}"/>'
            for colour, value, radius in zip(_SPAN_COLOURS, (middle, slow, worst), (6, 5, 4), strict=True)
        ]
        parts.append("</g>")
    return _svg(height + 24, parts, figure.title)


def _grid(marks: Sequence[float], labels: Sequence[tuple[float, str]]) -> str:
    drawn = []
    for mark in marks:
        y = _y(mark, marks[-1])
        drawn.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}"/>')
        drawn.append(f'<text class="axis" text-anchor="end" x="{_LEFT - 8}" y="{y + 4:.1f}">{short(mark)}</text>')
    foot = _TOP + _PLOT_HEIGHT + 18
    drawn += [
        f'<text class="axis" text-anchor="middle" x="{min(max(x, 40), WIDTH - 48):.1f}" y="{foot}">'
        f"{escape(text)}</text>"
        for x, text in labels
    ]
    return "".join(drawn)


def _steps(steps: Sequence[str], room: float) -> list[tuple[float, str]]:
    """Labels of some of the steps, as many as have room."""
    every = max(1, math.ceil(len(steps) / (_STEP_LABELS if room < 60 else len(steps))))
    return [(_LEFT + room * (number + 0.5), text) for number, text in enumerate(steps) if number % every == 0]


def _some(moments: Sequence[datetime], most: int) -> Iterator[datetime]:
    every = max(1, math.ceil(len(moments) / most))
    yield from moments[::every]


def _name(name: str, y: float) -> str:
    cut = name if len(name) <= _NAME_CHARS else f"{name[: _NAME_CHARS - 1]}…"
    told = f"{escape(cut)}<title>{escape(name)}</title>"
    return f'<text x="{_NAMES_WIDTH - 10}" y="{y + 17}" text-anchor="end">{told}</text>'


def _y(value: float, highest: float) -> float:
    return _TOP + _PLOT_HEIGHT * (1 - value / highest)


def _colour(order: int) -> int:
    return min(order, COLOURS - 1)


def _svg(height: float, parts: Sequence[str], title: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
