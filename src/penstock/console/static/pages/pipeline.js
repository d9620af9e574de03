// The pipeline: how far behind the archive is, what the lake has, and the way to queries, reports and replays.
import { get, path, rows } from "../api.js";
import { banner, bytesTile, card, emptyState, numberTile, pageHead, status, tabs, tile } from "../components.js";
import { drawer } from "../dialogs.js";
import { h, show } from "../dom.js";
import { bytes, count, relative } from "../format.js";
import { filterBox, Grid, table } from "../grid.js";
import { at, bootstrap, state } from "../router.js";
import { plural, t } from "../translations.js";
import { jobs } from "./pipeline_jobs.js";
import { replay } from "./pipeline_replay.js";
import { reports } from "./pipeline_reports.js";
import { sql } from "./pipeline_sql.js";

const LAKE = "data/lake";
const TABS = ["archive", "tables", "sql", "reports", "replay", "jobs"];

export async function pipeline(page) {
  const scope = path`/clusters/${state.cluster}/lake`;
  const tab = TABS.includes(page.params.tab) ? page.params.tab : "archive";
  const head = h("div");
  const body = h("div.stack");
  show(
    page.root,
    pageHead({
      title: t("Pipeline"),
      note: t("The archive of topics in a lake: how far it is, and what can be asked of it."),
    }),
    head,
    body,
  );
  const lake = await get(scope, page.signal);
  if (!lake.uri) return show(body, noLake());
  if (lake.problem) return show(body, badLake(lake));
  show(
    head,
    tabs(
      [
        ["archive", t("Archive"), at`/pipeline`],
        ["tables", t("Tables"), at`/pipeline/tables`],
        ["sql", t("SQL"), at`/pipeline/sql`],
        ["reports", t("Reports"), at`/pipeline/reports`],
        ["replay", t("Replay"), at`/pipeline/replay`],
        ["jobs", t("Jobs"), at`/pipeline/jobs`],
      ],
      tab,
    ),
  );
  const work = path`/clusters/${state.cluster}/pipeline`;
  const known = { ...lake, scope };
  if (tab === "sql") return sql(page, body, work, known);
  if (tab === "reports") return reports(page, body, work);
  if (tab === "replay") return replay(page, body, work, known);
  if (tab === "jobs") return jobs(page, body, work);
  return (tab === "tables" ? tables : archive)(page, body, scope, lake);
}

function noLake() {
  return card({
    label: t("Pipeline"),
    body: emptyState({
      symbol: "pipeline",
      title: t("This cluster has no lake yet"),
      text: t(
        "Archive topics into a lake, then start the console with it. The first command keeps running: each record is in the lake once, and brokers keep records until they are there.",
      ),
      commands: [
        "pip install 'penstock[pipeline]'",
        `penstock --bootstrap ${bootstrap()} pipeline archive --lake ${LAKE} --pattern '.*' --hold`,
        `penstock console --cluster ${state.cluster}=${bootstrap()} --lake ${state.cluster}=${LAKE}`,
      ],
    }),
  });
}

function badLake(lake) {
  return card({
    label: t("Pipeline"),
    body: emptyState({
      symbol: "warn",
      title: t("The lake cannot be read"),
      text: lake.problem,
      commands: [`penstock --bootstrap ${bootstrap()} pipeline archive --lake ${lake.uri} --pattern '.*' --hold`],
    }),
  });
}

async function archive(page, body, scope, first) {
  const tiles = h("div.kpis");
  const trouble = h("div.stack");
  const grid = new Grid({
    label: t("Archive lag"),
    key: (each) => each.topic,
    sort: ["behind", true],
    onrow: (each) => each.is_live && partitions(page, scope, each),
    load: (wanted) => get(`${scope}/lag${rows(wanted, filter)}`, page.signal),
    empty: () =>
      emptyState({
        symbol: "pipeline",
        title: filter ? t("No topic matches") : t("Nothing is archived yet"),
        text: filter ? "" : t("The lake has no record of a topic that you see."),
      }),
    columns: [
      {
        key: "topic",
        title: t("Topic"),
        name: true,
        sort: true,
        cell: (each) =>
          each.is_live
            ? h(
                "button.cell-button.mono",
                { type: "button", onclick: () => partitions(page, scope, each) },
                each.topic,
              )
            : h("span.mono", null, each.topic),
      },
      { key: "state", title: t("State"), cell: stateOf },
      { key: "behind", title: t("Not archived"), num: true, sort: true, cell: (each) => count(each.behind) },
      { key: "lost", title: t("Lost"), num: true, sort: true, phone: false, cell: (each) => count(each.lost) },
      { key: "rows", title: t("Archived"), num: true, sort: true, phone: false, cell: (each) => count(each.rows) },
      { key: "size_bytes", title: t("Size"), num: true, sort: true, phone: false, cell: (each) => bytes(each.size_bytes) },
      { key: "newest_ms", title: t("Newest"), sort: true, phone: false, cell: (each) => relative(each.newest_ms) },
    ],
  });
  let filter = page.query.text ?? "";
  const drawHead = (lake) => {
    show(
      tiles,
      numberTile({
        label: t("Not archived"),
        value: lake.behind,
        note: plural(lake.topics, "{n} topic in the lake", "{n} topics in the lake"),
      }),
      numberTile({ label: t("Archived"), value: lake.rows, note: plural(lake.files, "{n} file", "{n} files") }),
      bytesTile({ label: t("Size of the lake"), value: lake.size_bytes, note: lake.uri }),
      tile({
        label: t("Last change"),
        value: relative(lake.changed_ms),
        note: t("version {n}", { n: count(lake.version) }),
      }),
    );
    show(
      trouble,
      lake.lost
        ? banner(
            "error",
            t("{n} offsets were deleted before they were archived", { n: count(lake.lost) }),
            t("The archiver stops there unless it is started with --accept-loss. Have brokers wait for it with --hold."),
          )
        : null,
      lake.not_archived_count
        ? banner(
            "",
            plural(lake.not_archived_count, "{n} topic is not archived", "{n} topics are not archived"),
            lake.not_archived.join(", ") + (lake.not_archived_count > lake.not_archived.length ? " …" : ""),
          )
        : null,
    );
  };
  drawHead(first);
  show(
    body,
    tiles,
    trouble,
    card({
      title: t("Archive lag"),
      tools: [
        filterBox(
          t("Filter topics"),
          (text) => {
            filter = text;
            grid.reload();
          },
          filter,
        ),
      ],
      body: grid.element,
    }),
  );
  page.every(5000, async () => {
    const lake = await get(scope, page.signal);
    if (!lake.problem) drawHead(lake);
    await grid.reload({ quiet: true });
  });
  await grid.reload();
}

function stateOf(each) {
  if (!each.is_live) return status("idle", t("Deleted at the cluster"));
  if (each.lost) return status("error", t("Has a gap"));
  return each.behind ? status("warn", t("Behind")) : status("ok", t("Archived to the end"));
}

async function partitions(page, scope, each) {
  const found = await get(`${scope}/lag/${encodeURIComponent(each.topic)}`, page.signal);
  drawer({
    title: each.topic,
    body: [
      table(
        [
          { key: "index", title: t("Partition"), num: true, cell: (one) => one.index },
          { key: "start", title: t("First offset"), num: true, phone: false, cell: (one) => count(one.start) },
          { key: "archived", title: t("Archived to"), num: true, cell: (one) => count(one.archived) },
          { key: "end", title: t("End"), num: true, cell: (one) => count(one.end) },
          { key: "behind", title: t("Not archived"), num: true, cell: (one) => count(one.behind) },
          { key: "lost", title: t("Lost"), num: true, phone: false, cell: (one) => count(one.lost) },
        ],
        found,
        { key: (one) => one.index, label: t("Partitions") },
      ),
      h("p.muted", null, t("Messages from {first} to {last} are in the lake.", { first: each.first_day, last: each.last_day })),
    ],
    footer: [h("a.btn", { href: at`/topics/${each.topic}/messages` }, t("Messages"))],
  });
}

async function tables(page, body, scope, lake) {
  const found = await get(`${scope}/tables`, page.signal);
  const columns = [
    { key: "name", title: t("Table"), name: true, cell: (each) => h("span.mono", null, each.name) },
    { key: "rows", title: t("Rows"), num: true, cell: (each) => count(each.rows) },
    { key: "size", title: t("Size"), num: true, cell: (each) => bytes(each.size_bytes) },
    { key: "files", title: t("Files"), num: true, phone: false, cell: (each) => count(each.files) },
  ];
  const days = [
    { key: "from", title: t("From"), phone: false, cell: (each) => each.from_day },
    { key: "until", title: t("To"), phone: false, cell: (each) => each.until_day },
  ];
  const topics = found.tables.filter((each) => each.kind === "topic");
  const reports = found.tables.filter((each) => each.kind === "report");
  show(
    body,
    card({
      title: t("Topics"),
      count: count(topics.length),
      body: table([...columns, ...days], topics, {
        label: t("Topics"),
        empty: () => emptyState({ symbol: "topics", title: t("Nothing is archived yet") }),
      }),
    }),
    card({
      title: t("Reports"),
      count: count(reports.length),
      body: table(columns, reports, {
        label: t("Reports"),
        empty: () =>
          emptyState({
            symbol: "overview",
            title: t("No report was kept yet"),
            text: t("Each run of a report adds rows to tables of the lake, which every Delta reader finds."),
            commands: [`penstock --bootstrap ${bootstrap()} pipeline report --lake ${lake.uri} --html report.html`],
          }),
      }),
    }),
    card({
      title: t("Columns of topics"),
      count: count(found.columns.length),
      body: table(
        [
          { key: "name", title: t("Column"), name: true, cell: (each) => h("span.mono", null, each.name) },
          { key: "type", title: t("Type"), clip: true, cell: (each) => h("span.mono", null, each.type) },
        ],
        found.columns,
        { label: t("Columns of topics") },
      ),
    }),
  );
}
