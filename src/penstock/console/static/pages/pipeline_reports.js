// Reports: run one or watch it, and what it found as charts and tables.
import { get, post } from "../api.js";
import { COLOURS, LineChart, stackedColumns } from "../charts.js";
import { banner, button, card, checkbox, emptyState, field, input, problemBanner, select } from "../components.js";
import { form } from "../dialogs.js";
import { h, show } from "../dom.js";
import { count, relative, short, time } from "../format.js";
import { table } from "../grid.js";
import { note } from "../router.js";
import { plural, t } from "../translations.js";
import { follow, isOver, jobStatus } from "./pipeline_jobs.js";

const NAMES = () => ({
  volume: t("Volume"),
  latency: t("Latency"),
  lag: t("Lag"),
  failures: t("Failures"),
  skew: t("Skew"),
  delays: t("Delays"),
  sizes: t("Sizes"),
  reconciliation: t("Reconciliation"),
});
const SHOWN_ROWS = 50;
const HOUR_MS = 3600000;

export async function reports(page, body, scope) {
  const list = h("div");
  const progress = h("div");
  const answer = h("div.stack");
  let chosen = page.query.job ?? "";
  let drawnAt = "";
  const drawAnswer = async (job) => {
    const told = await get(`${scope}/jobs/${job.id}/result`, page.signal);
    if (drawnAt === `${job.id} ${told.report.at}`) return;
    drawnAt = `${job.id} ${told.report.at}`;
    show(answer, reportCards(told.report));
  };
  const look = async (job) => {
    chosen = job.id;
    note({ job: job.id });
    show(answer);
    drawnAt = "";
    // A report that repeats has a result before it is over.
    const over = isOver(job)
      ? job
      : await follow(page, scope, job, progress, { ontell: (told) => (told.has_result ? drawAnswer(told) : null) });
    if (isOver(job) && job.state === "failed") show(progress, banner("error", t("The job failed"), job.problem));
    if (over?.has_result) await drawAnswer(over);
    await drawList();
  };
  const drawList = async () => {
    const found = (await get(`${scope}/jobs`, page.signal)).filter((each) => each.kind === "report");
    show(
      list,
      card({
        title: t("Reports"),
        count: count(found.length),
        tools: [button(t("Run a report"), () => ask(), { kind: "primary", symbol: "play", small: true })],
        body: table(
          [
            { key: "state", title: t("State"), cell: jobStatus },
            {
              key: "title",
              title: t("What"),
              clip: true,
              cell: (each) =>
                h(
                  "button.cell-button",
                  { type: "button", title: each.title, onclick: () => look(each), "aria-pressed": String(each.id === chosen) },
                  each.title.slice(0, 90),
                ),
            },
            { key: "user", title: t("By"), phone: false, cell: (each) => each.user },
            { key: "asked", title: t("Started"), phone: false, cell: (each) => relative(each.asked_ms) },
          ],
          found,
          {
            key: (each) => each.id,
            label: t("Reports"),
            empty: () =>
              emptyState({
                symbol: "overview",
                title: t("No report yet"),
                text: t("A report reads the topics once and shows volume, latency, lag, failures, skew, delays and sizes."),
                actions: [button(t("Run a report"), () => ask(), { kind: "primary", symbol: "play" })],
              }),
          },
        ),
      }),
    );
    return found;
  };
  const ask = () =>
    reportDialog(scope, async (job) => {
      await drawList();
      look(job).catch((problem) => problem.name === "AbortError" || show(progress, problemBanner(problem)));
    });
  show(body, list, progress, answer);
  const found = await drawList();
  const wanted = found.find((each) => each.id === chosen) ?? found.find((each) => each.has_result);
  if (wanted) await look(wanted);
}

function reportDialog(scope, onstarted) {
  const boxes = Object.entries(NAMES()).map(([name, title]) => [name, checkbox(title, name !== "reconciliation")]);
  const topics = input({ class: "mono", placeholder: t("all topics") });
  const since = select(
    [
      ["1", t("the last hour")],
      ["24", t("the last day")],
      ["168", t("the last week")],
      ["", t("everything")],
    ],
    "24",
  );
  const pair = input({ class: "mono", placeholder: "orders:payments" });
  const watch = select(
    [
      ["", t("once")],
      ["60", t("every minute")],
      ["600", t("every ten minutes")],
      ["3600", t("every hour")],
    ],
    "",
  );
  form({
    title: t("Run a report"),
    action: t("Run"),
    body: [
      h(
        "div.field",
        { role: "group", "aria-label": t("Reports") },
        h("span.label", null, t("Reports")),
        h("div.row.wrap", null, boxes.map(([, box]) => box)),
      ),
      h("div.fields", null, field(t("Topics"), topics, t("Names with commas; empty: all.")), field(t("Messages of"), since)),
      h(
        "div.fields",
        null,
        field(t("Reconcile"), pair, t("Two topics, A:B: whether every business id of A is in B.")),
        field(t("Run it"), watch, t("A report that repeats keeps a Spark running until it is ended.")),
      ),
    ],
    submit: async () => {
      const [sent_in, seen_in] = pair.value.split(":").map((each) => each.trim());
      const only = boxes.filter(([, box]) => box.box.checked).map(([name]) => name);
      if (sent_in && !only.includes("reconciliation")) only.push("reconciliation");
      const job = await post(`${scope}/reports`, {
        topics: topics.value
          .split(",")
          .map((each) => each.trim())
          .filter(Boolean),
        only,
        since_ms: since.value ? Date.now() - Number(since.value) * HOUR_MS : null,
        reconcile: sent_in ? [{ sent_in, seen_in: seen_in ?? "" }] : [],
        watch_s: watch.value ? Number(watch.value) : null,
      });
      onstarted(job);
    },
  });
}

function reportCards(told) {
  return [
    h(
      "p.muted",
      null,
      t("Computed {time} of {topics}", {
        time: time(Date.parse(told.at)),
        topics: plural(told.topics.length, "{n} topic", "{n} topics"),
      }),
    ),
    told.left_out.length
      ? banner("", t("Masking rules count for your role"), t("Not shown, because they quote messages: {names}", { names: told.left_out.join(", ") }))
      : null,
    told.sections.map(sectionCard),
  ];
}

function sectionCard(section) {
  const hasRows = section.tables.some((each) => each.rows.length);
  return card({
    title: section.title,
    body: h(
      "div.stack",
      { style: { padding: "0 16px 16px" } },
      h("p.muted", null, section.note),
      hasRows ? null : h("p", null, h("b", null, t("Nothing of the kind in this window."))),
      section.figures.map(figure),
      section.tables.filter((each) => each.rows.length).map(tableOf),
    ),
  });
}

function tableOf(each) {
  const shown = each.rows.slice(0, SHOWN_ROWS);
  return h(
    "details",
    null,
    h("summary", null, each.title, " ", h("span.muted", null, plural(each.row_count, "{n} row", "{n} rows"))),
    table(
      each.columns.map((name) => ({
        key: name,
        title: name.replaceAll("_", " "),
        num: typeof shown.find((row) => row[name] !== null)?.[name] === "number",
        clip: true,
        cell: (row) => value(row[name]),
      })),
      shown,
      { key: (row) => shown.indexOf(row), label: each.title },
    ),
    each.row_count > shown.length ? h("p.muted", null, t("The lake has all rows, in the table {name}.", { name: `_reports/${each.name}` })) : null,
  );
}

function value(each) {
  if (each === null || each === undefined) return "–";
  if (typeof each === "number") return Number.isInteger(each) ? count(each) : count(Number(each.toPrecision(4)));
  return typeof each === "object" ? JSON.stringify(each) : String(each);
}

const FIGURES = { lines, columns, bars, spans };

function figure(each) {
  const drawn = FIGURES[each.kind]?.(each);
  return drawn ? h("figure", null, h("figcaption.section-title", null, each.title, h("span.muted", null, each.unit)), drawn) : null;
}

function lines(each) {
  const chart = new LineChart({ label: each.title });
  chart.update(
    Object.entries(each.series).map(([name, points]) => ({ name, points: points.map(([at, number]) => [Date.parse(at), number]) })),
  );
  return [chart.legend, chart.element];
}

/** Columns by step, their parts stacked. */
function columns(each) {
  const names = Object.keys(each.parts);
  const parts = names.map((name, order) => ({ name, colour: (order % COLOURS) + 1, values: each.parts[name] }));
  return [
    parts.length > 1 ? h("div.legend", null, parts.map(({ name, colour }) => h(`span.s-${colour}`, { title: name }, h("i"), name))) : null,
    stackedColumns(each.steps, parts, { label: each.title, unit: each.unit }),
  ];
}

function bars(each) {
  const most = Math.max(1, ...each.values.map(([, number]) => number));
  return table(
    [
      { key: "name", title: t("Name"), clip: true, cell: ([name]) => h("span.mono", { title: name }, name) },
      {
        key: "value",
        title: each.unit,
        num: true,
        cell: ([, number]) =>
          h("span.lag-cell", null, short(number), h("span.meter", { "aria-hidden": "true" }, h("i", { style: { width: `${(number / most) * 100}%` } }))),
      },
    ],
    each.values,
    { key: ([name]) => name, label: each.title },
  );
}

function spans(each) {
  return table(
    [
      { key: "name", title: t("Name"), clip: true, cell: ([name]) => h("span.mono", { title: name }, name) },
      ...["50 %", "90 %", "99 %"].map((title, index) => ({
        key: title,
        title: `${title}, ${each.unit}`,
        num: true,
        cell: (row) => count(Math.round(row[index + 1])),
      })),
    ],
    each.values,
    { key: ([name]) => name, label: each.title },
  );
}

