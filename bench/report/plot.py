"""The picture: Penstock's ratio to Kafka for each measure with a goal, on a logarithmic axis.

Colour says who is ahead, and nothing else. A goal of our own is a mark of its own: a six-fold lead whose goal is
ten-fold is still a lead.
"""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from bench.measure import Measure, Results
from bench.report.table import BASE, OURS

AHEAD, BEHIND, GOAL = "#2166ac", "#d9772b", "#222222"
"""Blue and orange are told apart by readers who cannot tell red from green."""


def draw(path: Path, results: Results) -> None:
    """One bar a measure: how many times better than Kafka, or worse; a diamond is the goal."""
    bars: list[tuple[Measure, float]] = []
    for key, measure in results.measures.items():
        ratio = results.ratio(key, OURS, BASE)
        if measure.goal is not None and ratio:
            bars.append((measure, ratio))
    figure = Figure(figsize=(11, 1.6 + 0.32 * max(1, len(bars))), layout="constrained")
    axes = figure.add_subplot()
    figure.suptitle("Penstock beside Apache Kafka, median of the same run", fontsize=11)
    for place, (measure, ratio) in enumerate(bars):
        good = measure.higher_is_better
        value = ratio if good else 1 / ratio
        goal = (measure.goal or 1) if good else 1 / (measure.goal or 1)
        axes.barh(place, value - 1, left=1, color=AHEAD if value >= 1 else BEHIND, height=0.6)
        axes.plot([goal], [place], marker="D", markersize=5, markerfacecolor="white", markeredgecolor=GOAL)
        axes.annotate(f"{value:.2f}×", (max(value, goal, 1), place), xytext=(6, -3), textcoords="offset points", size=8)
    axes.set_yticks(range(len(bars)), [f"{measure.label}, {measure.unit}" for measure, _ in bars], fontsize=8)
    axes.set_xscale("log")
    ticks = [0.0625, 0.125, 0.25, 0.5, 1, 2, 4, 8, 16, 32]
    axes.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
    axes.minorticks_off()
    axes.axvline(1, color="#999999", linewidth=0.8)
    axes.margins(x=0.1)
    axes.invert_yaxis()
    axes.set_xlabel("← Kafka is better · 1× is level · Penstock is better →", fontsize=9)
    figure.legend(
        handles=[
            Patch(color=AHEAD, label="Penstock is ahead"),
            Patch(color=BEHIND, label="Kafka is ahead"),
            Line2D([], [], linestyle="", marker="D", markerfacecolor="white", markeredgecolor=GOAL, label="our goal"),
        ],
        loc="outside lower center",
        ncols=3,
        fontsize=9,
        frameon=False,
    )
    figure.savefig(path)
