// Topics: the list, and a new one.
import { get, path, post, rows } from "../api.js";
import {
  button,
  card,
  chips,
  emptyState,
  field,
  input,
  lagCell,
  pageHead,
  select,
  topicStatus,
} from "../components.js";
import { act, form, toast } from "../dialogs.js";
import { h, show } from "../dom.js";
import { bytes, count, short } from "../format.js";
import { filterBox, Grid } from "../grid.js";
import { at, go, note, state } from "../router.js";
import { plural, t } from "../translations.js";
import { PRESETS, settingHelp } from "./settings_help.js";

export const topicState = (row) => (row.offline ? "offline" : row.under_replicated ? "degraded" : "healthy");

/** The table of topics with its filters, on its own page and on the overview. */
export function topicGrid(page, { limit } = {}) {
  const scope = path`/clusters/${state.cluster}`;
  let filter = page.query.text ?? "";
  let kind = page.query.state ?? "all";
  let most = 1;
  const total = h("span.count");
  const grid = new Grid({
    label: t("Topics"),
    sort: [page.query.sort ?? (limit ? "lag" : "name"), page.query.descending === "true" || Boolean(limit)],
    page: limit ?? 100,
    onsort: (sort, descending) => note({ sort, descending }),
    onrow: (row) => go(at`/topics/${row.name}`),
    load: async (wanted) => {
      const found = await get(
        `${scope}/topics${rows(wanted, filter, { internal: kind === "internal" ? true : "" })}`,
        page.signal,
      );
      most = Math.max(1, ...found.items.map((each) => each.lag ?? 0));
      show(total, count(found.total));
      return limit ? { items: found.items, total: found.items.length } : found;
    },
    empty: () =>
      filter || kind !== "all"
        ? emptyState({
            symbol: "search",
            title: t("No topic matches"),
            text: t("Change the filter, or look at all topics."),
          })
        : noTopics(),
    columns: [
      {
        key: "name",
        title: t("Topic"),
        name: true,
        sort: true,
        cell: (row) => h("a", { href: at`/topics/${row.name}` }, row.name),
      },
      { key: "under_replicated", title: t("Status"), sort: true, cell: (row) => topicStatus(topicState(row)) },
      {
        key: "partition_count",
        title: t("Partitions"),
        num: true,
        sort: true,
        phone: false,
        cell: (row) => count(row.partition_count),
      },
      {
        key: "replication_factor",
        title: t("In sync"),
        phone: false,
        cell: (row) =>
          row.under_replicated
            ? t("{n} behind", { n: count(row.under_replicated) })
            : `${row.replication_factor} / ${row.replication_factor}`,
      },
      {
        key: "rate_per_s",
        title: t("Messages/s"),
        num: true,
        sort: true,
        phone: false,
        cell: (row) => (row.rate_per_s === null ? "–" : short(Math.round(row.rate_per_s * 10) / 10)),
      },
      {
        key: "messages",
        title: t("Messages"),
        num: true,
        sort: true,
        phone: false,
        cell: (row) => count(row.messages),
      },
      {
        key: "lag",
        title: t("Lag"),
        num: true,
        sort: true,
        cell: (row) => (row.group_count ? lagCell(row.lag, most) : h("span.muted", null, t("no group"))),
      },
      {
        key: "size_bytes",
        title: t("Size"),
        num: true,
        sort: true,
        phone: false,
        cell: (row) => bytes(row.size_bytes),
      },
    ],
  });
  const holder = card({
    title: t("Topics"),
    count: total,
    body: grid.element,
    tools: [
      limit
        ? null
        : chips(
            [
              ["all", t("Own")],
              ["internal", t("With internal")],
            ],
            kind,
            (chosen) => {
              kind = chosen;
              note({ state: kind === "all" ? "" : kind });
              grid.reload();
            },
          ),
      filterBox(
        t("Filter topics"),
        (text) => {
          filter = text;
          if (!limit) note({ text });
          grid.reload();
        },
        filter,
      ),
    ],
  });
  return { card: holder, reload: (options) => grid.reload(options) };
}

export async function topics(page) {
  const grid = topicGrid(page);
  show(
    page.root,
    pageHead({
      title: t("Topics"),
      note: t("Where messages live. Open one for its partitions, messages, settings and groups."),
      actions: [button(t("New topic"), createTopic, { kind: "primary", symbol: "plus" })],
    }),
    grid.card,
  );
  if (page.query.create) {
    note({ create: "" });
    createTopic();
  }
  page.every(5000, () => grid.reload({ quiet: true }));
  await grid.reload();
}

function noTopics() {
  return emptyState({
    symbol: "topics",
    title: t("No topics yet"),
    text: t(
      "Create one here, or from a terminal. A producer creates one by writing to it where the broker allows that.",
    ),
    commands: ["penstock topic create orders --partitions 3"],
    actions: [button(t("New topic"), createTopic, { kind: "primary", symbol: "plus" })],
  });
}

function createTopic() {
  const name = input({ autofocus: true, class: "mono", placeholder: "orders" });
  const partitions = input({ type: "number", min: 1, max: 100000, value: "3" });
  const replicas = input({ type: "number", min: 1, placeholder: t("default of the cluster") });
  const partitionsField = field(
    t("Partitions"),
    partitions,
    t("How many consumers of a group can share the work. More can be added later, and retired."),
  );
  const replicasField = field(t("Replicas"), replicas, t("Copies of each partition, each on another broker."));
  const nameField = field(t("Name"), name, t("Letters, digits, dots, dashes and underscores; up to 249."));
  const retention = select(PRESETS["retention.ms"], "1209600000");
  const cleanup = select(PRESETS["cleanup.policy"], "delete");
  const compression = select(PRESETS["compression.type"], "producer");
  form({
    title: t("New topic"),
    action: t("Create topic"),
    body: [
      nameField,
      h("div.fields", null, partitionsField, replicasField),
      h(
        "div.fields",
        null,
        field(t("Keep messages for"), retention, settingHelp("retention.ms")),
        field(t("Clean up by"), cleanup, settingHelp("cleanup.policy")),
      ),
      field(t("Compression"), compression, settingHelp("compression.type")),
    ],
    submit: async () => {
      if (!/^[A-Za-z0-9._-]{1,249}$/.test(name.value)) {
        nameField.complain(t("A name has 1 to 249 letters, digits, dots, dashes and underscores."));
        name.focus();
        return false;
      }
      for (const [each, isRequired] of [
        [partitionsField, true],
        [replicasField, false],
      ]) {
        const { value } = each.control;
        if (value === "" ? isRequired : !/^[1-9]\d*$/.test(value)) {
          each.complain(t("A whole number, 1 or more."));
          each.control.focus();
          return false;
        }
      }
      const settings = Object.fromEntries(
        [
          ["retention.ms", retention.value],
          ["cleanup.policy", cleanup.value],
          ["compression.type", compression.value],
        ].filter(([key, value]) => value !== DEFAULTS[key]),
      );
      await post(path`/clusters/${state.cluster}/topics`, {
        name: name.value,
        partitions: Number(partitions.value),
        replication_factor: replicas.value ? Number(replicas.value) : null,
        settings,
      });
      toast(
        "ok",
        t("Topic {name} is created", { name: name.value }),
        plural(Number(partitions.value), "{n} partition", "{n} partitions"),
      );
      go(at`/topics/${name.value}`);
      return true;
    },
  });
}

const DEFAULTS = { "retention.ms": "1209600000", "cleanup.policy": "delete", "compression.type": "producer" };

export { act };
