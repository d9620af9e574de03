// SQL over lake and log: a query as a job, and its rows.
import { get, post } from "../api.js";
import { banner, button, card, emptyState, input, problemBanner, segments, textarea } from "../components.js";
import { h, show } from "../dom.js";
import { count, duration } from "../format.js";
import { Grid } from "../grid.js";
import { note } from "../router.js";
import { plural, t } from "../translations.js";
import { save } from "../record.js";
import { follow } from "./pipeline_jobs.js";

const CELL_CHARS = 300;
const CLIPPED_CHARS = 40;

export async function sql(page, body, scope, lake) {
  const tables = await get(`${lake.scope}/tables`, page.signal);
  const first = tables.tables.find((each) => each.kind === "topic")?.name ?? "*";
  const example = `select partition, offset, timestamp, cast(value as string) as value\nfrom \`${first}\`\norder by timestamp desc`;
  const text = textarea({ rows: 6, class: "mono", "aria-label": t("Query"), "data-search": true }, page.query.sql ?? example);
  const limit = input({ type: "number", min: 1, max: 1000, value: "200", "aria-label": t("At most"), class: "auto", style: { width: "90px" } });
  let side = "both";
  const where = segments(
    [
      ["both", t("Lake and log")],
      ["lake", t("Lake")],
      ["log", t("Log")],
    ],
    side,
    (key) => {
      side = key;
    },
    t("What is read"),
  );
  const progress = h("div");
  const answer = h("div.stack");
  const run = async () => {
    try {
      const job = await post(`${scope}/queries`, { sql: text.value, side, limit: Number(limit.value) || 200 });
      note({ job: job.id, sql: "" });
      await finish(job);
    } catch (problem) {
      if (problem.name !== "AbortError") show(progress, problemBanner(problem));
    }
  };
  const finish = async (job) => {
    show(answer);
    const over = await follow(page, scope, job, progress);
    if (over?.state !== "done") return;
    const told = await get(`${scope}/jobs/${job.id}/result`, page.signal);
    show(answer, rowsCard(told.query, over));
  };
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      run();
    }
  });
  show(
    body,
    card({
      label: t("Query"),
      body: h(
        "div.stack",
        { style: { padding: "16px" } },
        text,
        h(
          "div.row.wrap",
          null,
          where,
          h("label.row", null, t("At most"), limit),
          h("span.grow"),
          button(t("Run"), run, { kind: "primary", symbol: "play", title: "Ctrl ↵" }),
        ),
        h(
          "p.muted",
          null,
          t(
            "Each topic is a table; quote names with dots or dashes: `orders.eu`. `*` is all topics. Only queries of topics are allowed, and only for users who may read every message unmasked.",
          ),
        ),
      ),
    }),
    progress,
    answer,
  );
  if (page.query.job) {
    const told = await get(`${scope}/jobs/${encodeURIComponent(page.query.job)}`, page.signal).catch(() => null);
    if (told?.job.kind === "query") {
      text.value = told.job.title;
      await finish(told.job);
    }
  }
}

function rowsCard(told, job) {
  const grid = new Grid({
    label: t("Rows"),
    key: (each) => each.number,
    load: async () => ({ items: [] }),
    empty: () => emptyState({ symbol: "topics", title: t("The query has no rows") }),
    columns: told.columns.map((name, index) => ({
      key: name,
      title: name,
      num: typeof told.rows[0]?.[index] === "number",
      // Columns that are clipped share what room the others leave: short values need all of theirs.
      clip: told.rows.some((row) => textOf(row[index]).length > CLIPPED_CHARS),
      cell: (each) => cell(each.values[index]),
    })),
  });
  grid.setRows(told.rows.map((values, number) => ({ number, values })));
  const lines = () => told.rows.map((values) => `${JSON.stringify(Object.fromEntries(told.columns.map((name, index) => [name, values[index]])))}\n`);
  return card({
    title: t("Rows"),
    count: [plural(told.rows.length, "{n} row", "{n} rows"), duration(job.ended_ms - job.began_ms)].join(" · "),
    tools: [button(t("Download"), () => save("query.jsonl", lines().join(""), "application/x-ndjson"), { small: true, symbol: "download" })],
    body: h(
      "div",
      null,
      told.is_cut
        ? banner("", t("There are more rows"), t("Only the first {n} are shown; raise the limit, or aggregate.", { n: count(told.rows.length) }))
        : null,
      grid.element,
    ),
  });
}

function cell(value) {
  if (value === null || value === undefined) return h("span.muted", null, t("null"));
  const text = textOf(value);
  return h("span.mono", { title: text.slice(0, 2000) }, text.slice(0, CELL_CHARS));
}

const textOf = (value) => (typeof value === "object" ? JSON.stringify(value) : String(value));
