"""The picture: Penstock's ratio to Kafka for each measure with a goal, on a logarithmic axis."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from bench.measure import Measure, Results
from bench.report.table import BASE, OURS

MET, MISSED, GOAL = "#2a7f62", "#c0504d", "#222222"


def draw(path: Path, results: Results) -> None:
    """One bar a measure: how many times better than Kafka; the tick is the goal."""
    bars: list[tuple[Measure, float]] = []
    for key, measure in results.measures.items():
        ratio = results.ratio(key, OURS, BASE)
        if measure.goal is not None and ratio:
            bars.append((measure, ratio))
    figure = Figure(figsize=(11, 1.2 + 0.32 * max(1, len(bars))), layout="constrained")
    axes = figure.add_subplot()
    figure.suptitle("Penstock against Apache Kafka, same run: times better (right of 1 is better)", fontsize=10)
    for place, (measure, ratio) in enumerate(bars):
        good = measure.higher_is_better
        value = ratio if good else 1 / ratio
        goal = (measure.goal or 1) if good else 1 / (measure.goal or 1)
        axes.barh(place, value - 1, left=1, color=MET if measure.meets(ratio) else MISSED, height=0.6)
        axes.plot([goal, goal], [place - 0.4, place + 0.4], color=GOAL, linewidth=1.5)
        axes.annotate(f"{value:.2f}×", (max(value, goal, 1), place), xytext=(4, -3), textcoords="offset points", size=8)
    axes.set_yticks(range(len(bars)), [f"{measure.label}, {measure.unit}" for measure, _ in bars], fontsize=8)
    axes.set_xscale("log")
    ticks = [0.0625, 0.125, 0.25, 0.5, 1, 2, 4, 8, 16, 32]
    axes.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
    axes.minorticks_off()
    axes.axvline(1, color="#999999", linewidth=0.8)
    axes.margins(x=0.1)
    axes.invert_yaxis()
    figure.savefig(path)
