// Overview: is it well, what needs attention first, and how traffic and lag move.
import { get, path } from "../api.js";
import { samples } from "../history.js";
import { LineChart } from "../charts.js";
import { bytesTile, button, card, numberTile, pageHead, segments, tile } from "../components.js";
import { h, show } from "../dom.js";
import { bytes, count, percent, short, time } from "../format.js";
import { at, go, note, state } from "../router.js";
import { plural, t } from "../translations.js";
import { topicGrid } from "./topics.js";

const RANGES = [
  ["900000", "15 min"],
  ["3600000", "1 h"],
  ["21600000", "6 h"],
  ["86400000", "24 h"],
];
/** Series of the tiles; `in` is the throughput too. */
const TILES = ["in", "lag", "groups", "brokers", "size", "offline"];
const PLACES = {
  topic: (name) => at`/topics/${name}`,
  group: (name) => at`/groups/${name}`,
  broker: () => at`/brokers`,
  database: () => at`/databases`,
  alert: () => at`/alerts`,
  cluster: () => at`/brokers`,
};

export async function overview(page) {
  const scope = path`/clusters/${state.cluster}`;
  let range = page.query.range ?? "900000";
  const noteLine = h("span", null, t("All times UTC."));
  const tiles = h("div.kpis");
  const attention = h("div");
  const lagChart = new LineChart({ label: t("Consumer lag by group") });
  const rateChart = new LineChart({ label: t("Messages in per second") });
  page.onclose(() => [lagChart, rateChart].forEach((chart) => chart.close()));
  const grid = topicGrid(page, { limit: 12 });
  show(
    tiles,
    Array.from({ length: 6 }, () =>
      h(
        "div.card.kpi",
        { "aria-hidden": "true" },
        h("span.skeleton", { style: { width: "70px" } }),
        h("span.skeleton", { style: { width: "90px", height: "22px", "margin-top": "14px" } }),
      ),
    ),
  );

  const refresh = async () => {
    const now = await get(scope, page.signal);
    const groups = now.most_behind.slice(0, 5).map((each) => each.name);
    const names = [...TILES, ...groups.map((name) => `group.${name}`)];
    const history = await samples(names, Number(range), page.signal);
    show(noteLine, t("All times UTC. Updated {time}.", { time: time(now.summary.at_ms).slice(11) }));
    drawTiles(tiles, now, history);
    drawAttention(attention, now);
    const lags = history.slice(TILES.length);
    lagChart.update(lags.map((each) => ({ name: each.name.slice("group.".length), points: each.points })));
    rateChart.update([{ name: t("In"), points: history[0].points, area: true, colour: 1 }]);
  };
  show(
    page.root,
    pageHead({
      title: t("Overview"),
      note: noteLine,
      actions: [
        segments(
          RANGES.map(([ms, text]) => [ms, t(text)]),
          range,
          (chosen) => {
            range = chosen;
            note({ range });
            refresh();
          },
          t("Time range"),
        ),
        button(t("New topic"), () => go(`${at`/topics`}?create=1`), { kind: "primary", symbol: "plus" }),
      ],
    }),
    tiles,
    attention,
    h(
      "div.columns.stretch",
      null,
      h("div.col-7", null, card({ title: t("Consumer lag by group"), tools: lagChart.legend, body: lagChart.element })),
      h("div.col-5", null, card({ title: t("Throughput"), tools: rateChart.legend, body: rateChart.element })),
    ),
    grid.card,
  );
  await Promise.all([refresh(), grid.reload()]);
  page.every(5000, () => Promise.all([refresh(), grid.reload({ quiet: true })]));
}

function drawTiles(tiles, now, history) {
  const { summary } = now;
  const values = (name) => history[TILES.indexOf(name)].points.map(([, value]) => value);
  const disks = now.brokers.flatMap((each) => each.disks);
  const used = disks.reduce((sum, each) => sum + each.used_bytes, 0);
  const size = disks.reduce((sum, each) => sum + (each.total_bytes ?? 0), 0);
  const behind = now.most_behind.filter((each) => each.lag).length;
  show(
    tiles,
    numberTile({
      label: t("Messages in"),
      value: Math.round(summary.rate_per_s ?? 0),
      suffix: "/s",
      note: plural(summary.topics, "{n} topic", "{n} topics"),
      values: values("in"),
      colour: 1,
      href: at`/topics`,
    }),
    numberTile({
      label: t("Consumer lag"),
      value: summary.lag,
      note: lagNote(values("lag")),
      values: values("lag"),
      colour: 3,
      href: at`/groups`,
    }),
    numberTile({
      label: t("Consumer groups"),
      value: summary.groups,
      note: behind ? t("{n} behind", { n: count(behind) }) : t("all caught up"),
      noteKind: behind ? "" : "ok",
      values: values("groups"),
      colour: 2,
      href: at`/groups`,
    }),
    numberTile({
      label: t("Brokers"),
      value: summary.brokers,
      note: summary.is_reachable ? t("all answer") : t("not reachable"),
      noteKind: summary.is_reachable ? "ok" : "error",
      values: values("brokers"),
      colour: 4,
      href: at`/brokers`,
    }),
    bytesTile({
      label: t("Storage used"),
      value: used,
      note: size
        ? t("{share} % of {total}", { share: percent(used / size), total: bytes(size) })
        : "",
      values: values("size"),
      colour: 6,
      href: at`/brokers`,
    }),
    tile({
      label: t("Offline partitions"),
      value: count(now.offline),
      unit: t("of {n}", { n: count(summary.partitions) }),
      note: !summary.is_reachable
        ? t("when last seen")
        : now.under_replicated
          ? t("{n} under-replicated", { n: count(now.under_replicated) })
          : t("all replicas in sync"),
      noteKind: !summary.is_reachable ? "" : now.offline ? "error" : now.under_replicated ? "warn" : "ok",
      values: values("offline"),
      colour: now.offline ? "error" : 2,
      href: `${at`/topics`}?sort=under_replicated&descending=true`,
    }),
  );
}

function lagNote(values) {
  if (values.length < 2) return "";
  const change = values.at(-1) - values[0];
  return change === 0
    ? t("steady")
    : t("{change} in this range", { change: (change > 0 ? "+" : "−") + short(Math.abs(change)) });
}

function drawAttention(holder, now) {
  const kinds = { error: "error", warning: "warn", notice: "idle" };
  const list = now.findings;
  if (!list.length) {
    show(
      holder,
      h(
        "section.card",
        { "aria-label": t("Needs attention") },
        h(
          "div.card-head",
          null,
          h("span.dot.ok"),
          h("h2", null, t("Nothing needs attention")),
          h("span.count", null, t("Every partition has a leader, replicas are in sync, groups keep up.")),
        ),
      ),
    );
    return;
  }
  show(
    holder,
    card({
      title: t("Needs attention"),
      count: count(list.length),
      body: h(
        "ul.attention",
        null,
        list
          .slice(0, 6)
          .map((each) =>
            h(
              "li",
              null,
              h("span.dot", { class: kinds[each.severity] }),
              h("div.what", null, h("b", null, each.name), h("span", null, each.text)),
              h("a.btn.small", { href: (PLACES[each.kind] ?? PLACES.cluster)(each.name) }, t("Look")),
            ),
          ),
      ),
    }),
  );
}
