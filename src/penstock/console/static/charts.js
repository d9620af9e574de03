// Line charts, sparklines and histograms as SVG, coloured by CSS variables, so that a change of theme needs no redraw.
import { h, s, show } from "./dom.js";
import { clock, clockSeconds, count, short } from "./format.js";

/** In the style sheet: .s-1 to .s-8. */
export const COLOURS = 8;
const LEFT = 44;
const BOTTOM = 20;
const TOP = 8;

/** A series: {name, points: [[ms, value], ...], area, colour: 1..8}. */
export class LineChart {
  constructor({ label, format = short, height = "", legend = true }) {
    this.format = format;
    this.legend = legend ? h("div.legend") : null;
    this.element = h(`div.chart${height ? `.${height}` : ""}`, { role: "img", "aria-label": label });
    this.label = label;
    this.series = [];
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(this.element);
    this.element.addEventListener("pointermove", (event) => this.point(event));
    this.element.addEventListener("pointerleave", () => this.leave());
  }

  update(series) {
    this.series = series.map((each, index) => ({ colour: (index % COLOURS) + 1, ...each }));
    if (this.legend) {
      show(
        this.legend,
        this.series.map((each) => h(`span.s-${each.colour}`, { title: each.name }, h("i"), each.name)),
      );
    }
    this.draw();
  }

  close() {
    this.watcher.disconnect();
  }

  draw() {
    const style = getComputedStyle(this.element);
    const width = this.element.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    const height = this.element.clientHeight - parseFloat(style.paddingBottom) - parseFloat(style.paddingTop);
    if (!(width >= 60 && height >= 40)) return;
    const all = this.series.flatMap((each) => each.points);
    const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    const top = niceCeiling(Math.max(1, ...all.map(([, value]) => value ?? 0)));
    const first = all.length ? Math.min(...all.map(([at]) => at)) : Date.now() - 60000;
    const last = Math.max(all.length ? Math.max(...all.map(([at]) => at)) : Date.now(), first + 30000);
    const x = (at) => LEFT + ((at - first) / (last - first)) * (width - LEFT - 4);
    const y = (value) => height - BOTTOM - (value / top) * (height - BOTTOM - TOP);
    this.scale = { x, y, first, last, width, height };
    for (let step = 0; step <= 4; step++) {
      const value = (top / 4) * step;
      const line = Math.round(y(value)) + 0.5;
      svg.append(s("line.gridline", { x1: LEFT, x2: width, y1: line, y2: line }));
      svg.append(s("text", { x: LEFT - 8, y: line + 4, "text-anchor": "end" }, this.format(value)));
    }
    for (const at of timeTicks(first, last, Math.max(2, Math.floor(width / 90)))) {
      svg.append(
        s(
          "text",
          { x: x(at), y: height - 3, "text-anchor": "middle" },
          last - first < 300000 ? clockSeconds(at) : clock(at),
        ),
      );
    }
    for (const each of this.series) {
      for (const run of runs(each.points)) {
        const line = run.map(([at, value]) => `${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("L");
        const group = s(`g.s-${each.colour}`);
        if (each.area) {
          const ends = `L${x(run[run.length - 1][0]).toFixed(1)} ${y(0)}L${x(run[0][0]).toFixed(1)} ${y(0)}Z`;
          group.append(s("path.area", { d: `M${line}${ends}` }));
        }
        group.append(
          run.length > 1
            ? s("path.line", { d: `M${line}` })
            : s("circle.point", { cx: x(run[0][0]), cy: y(run[0][1]), r: 2 }),
        );
        svg.append(group);
      }
    }
    this.cross = s("line.cross", { y1: TOP, y2: height - BOTTOM, hidden: true, visibility: "hidden" });
    svg.append(this.cross);
    show(this.element, svg, this.tip);
    const latest = this.series.map((each) => `${each.name} ${this.format(each.points.at(-1)?.[1] ?? 0)}`);
    this.element.setAttribute("aria-label", `${this.label}: ${latest.join(", ")}`);
  }

  point(event) {
    if (!this.scale || !this.series.some((each) => each.points.length)) return;
    const box = this.element.querySelector("svg").getBoundingClientRect();
    const { x, first, last, width } = this.scale;
    const at = first + ((event.clientX - box.left - LEFT) / (width - LEFT - 4)) * (last - first);
    const near = this.series
      .map((each) => ({ ...each, point: nearest(each.points, at) }))
      .filter((each) => each.point && each.point[1] !== null);
    if (!near.length) return;
    const moment = near[0].point[0];
    this.cross.setAttribute("x1", x(moment));
    this.cross.setAttribute("x2", x(moment));
    this.cross.setAttribute("visibility", "visible");
    this.tip ??= h("div.tip");
    show(
      this.tip,
      h("time", null, clockSeconds(moment)),
      near.map((each) =>
        h(`div.s-${each.colour}`, null, h("i"), h("span", null, each.name), h("b", null, this.format(each.point[1]))),
      ),
    );
    if (!this.tip.isConnected) this.element.append(this.tip);
    const left = x(moment) + 28;
    this.tip.style.top = "8px";
    this.tip.style.left = `${left + this.tip.offsetWidth > width + 16 ? x(moment) - this.tip.offsetWidth + 4 : left}px`;
  }

  leave() {
    this.tip?.remove();
    this.tip = undefined;
    this.cross?.setAttribute("visibility", "hidden");
  }
}

/** A line without axes for a tile: values only, evenly spaced. */
export function sparkline(values, colour) {
  const known = values.filter((value) => value !== null && value !== undefined);
  const svg = s("svg", { viewBox: "0 0 100 36", preserveAspectRatio: "none", "aria-hidden": "true" });
  const holder = h(`div.spark.s-${colour}`, null, svg);
  if (known.length < 2) return holder;
  const top = Math.max(...known);
  const low = Math.min(...known);
  const span = top - low || Math.max(1, top);
  const points = known.map((value, index) => {
    const y = top === low ? (top === 0 ? 34 : 18) : 33 - ((value - low) / span) * 28;
    return `${((index / (known.length - 1)) * 100).toFixed(2)} ${y.toFixed(2)}`;
  });
  svg.append(s("path.area", { d: `M${points.join("L")}L100 36L0 36Z` }), s("path.line", { d: `M${points.join("L")}` }));
  return holder;
}

/** Columns of a histogram: [{from, until, count}]; `onpick(column)` makes them buttons for the pointer. */
export function histogram(columns, { label, describe, onpick, colour = 1 }) {
  return axes(columns, {
    label,
    most: Math.max(1, ...columns.map((each) => each.count)),
    name: (each) => each.label ?? clock(each.from),
    draw: (each, place) => {
      if (!each.count) return [];
      const column = place(0, each.count, colour, describe(each));
      if (onpick) {
        column.style.cursor = "pointer";
        column.addEventListener("click", () => onpick(each));
      }
      return [column];
    },
  });
}

/** Columns with a name each, of parts one upon the other: [{name, colour, values: one for each column}]. */
export function stackedColumns(steps, parts, { label, unit }) {
  const sums = steps.map((_, index) => parts.reduce((sum, part) => sum + Math.max(0, part.values[index]), 0));
  return axes(steps, {
    label,
    most: Math.max(1, ...sums),
    widest: 60,
    name: (step) => step,
    draw: (step, place, index) => {
      let below = 0;
      return parts
        .filter((part) => part.values[index] > 0)
        .map((part) => {
          const number = part.values[index];
          const what = `${step}: ${count(number)} ${unit}${parts.length > 1 ? `, ${part.name}` : ""}`;
          below += number;
          return place(below - number, number, part.colour, what);
        });
    },
  });
}

/** Columns above a line with names, beside a scale; `draw(column, place, index)` gives the rectangles of one. */
function axes(columns, { label, most, name, draw, widest = Infinity }) {
  const holder = h("div.chart", { role: "img", "aria-label": label });
  const redraw = () => {
    const style = getComputedStyle(holder);
    const width = holder.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    const height = holder.clientHeight - parseFloat(style.paddingBottom) - parseFloat(style.paddingTop);
    if (!(width >= 60)) return;
    const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    const top = niceCeiling(most);
    const y = (value) => height - BOTTOM - (value / top) * (height - BOTTOM - TOP);
    for (let step = 0; step <= 2; step++) {
      const line = Math.round(y((top / 2) * step)) + 0.5;
      svg.append(s("line.gridline", { x1: LEFT, x2: width, y1: line, y2: line }));
      svg.append(s("text", { x: LEFT - 8, y: line + 4, "text-anchor": "end" }, short((top / 2) * step)));
    }
    const step = (width - LEFT) / Math.max(1, columns.length);
    const every = Math.max(1, Math.ceil(110 / step));
    columns.forEach((each, index) => {
      const x = LEFT + index * step;
      const place = (below, value, colour, what) => {
        const tall = Math.max(2, y(below) - y(below + value));
        const column = s(`rect.column.s-${colour}`, {
          x: x + 1,
          width: Math.max(1, Math.min(widest, step - 2)),
          y: y(below) - tall,
          height: tall,
        });
        column.append(s("title", null, what));
        return column;
      };
      svg.append(...draw(each, place, index));
      if (index % every === 0 && x + 40 < width) svg.append(s("text", { x, y: height - 3 }, name(each)));
    });
    show(holder, svg);
  };
  new ResizeObserver(redraw).observe(holder);
  return holder;
}

function runs(points) {
  const found = [];
  let run = [];
  for (const point of points) {
    if (point[1] === null || point[1] === undefined) {
      if (run.length) found.push(run);
      run = [];
    } else run.push(point);
  }
  if (run.length) found.push(run);
  return found;
}

function nearest(points, at) {
  let best = null;
  for (const point of points) if (best === null || Math.abs(point[0] - at) < Math.abs(best[0] - at)) best = point;
  return best;
}

function niceCeiling(value) {
  const scale = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 2, 4, 5, 8, 10]) if (value <= step * scale) return Math.max(step * scale, 4);
  return 10 * scale;
}

function timeTicks(first, last, most) {
  const steps = [5, 10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400].map(
    (each) => each * 1000,
  );
  const step = steps.find((each) => (last - first) / each <= most) ?? 86400000 * 7;
  const ticks = [];
  for (let at = Math.ceil((first + (last - first) * 0.04) / step) * step; at < last - (last - first) * 0.04; at += step)
    ticks.push(at);
  return ticks;
}
