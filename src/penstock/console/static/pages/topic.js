// One topic: overview, messages, partitions, groups, settings, views.
import { get, patch, path, post, put, rows } from "../api.js";
import { LineChart } from "../charts.js";
import {
  banner,
  button,
  card,
  checkbox,
  emptyState,
  facts,
  field,
  groupStatus,
  iconButton,
  input,
  lagCell,
  pageHead,
  select,
  status,
  tabs,
  topicStatus,
} from "../components.js";
import { act, confirmTyped, drawer, form, menu, toast } from "../dialogs.js";
import { h, show } from "../dom.js";
import { bytes, count, relative, short, time } from "../format.js";
import { filterBox, Grid, table } from "../grid.js";
import { at, bootstrap, draw, go, state } from "../router.js";
import { plural, t } from "../translations.js";
import { messagesPanel } from "./messages.js";
import { PRESETS, reading } from "./settings_help.js";
import { topicState } from "./topics.js";
import { samples } from "../history.js";

const TABS = ["partitions", "segments", "messages", "groups", "settings"];

export async function topic(page) {
  const name = page.params.topic;
  const scope = path`/clusters/${state.cluster}/topics/${name}`;
  const tab = TABS.includes(page.params.tab) ? page.params.tab : "partitions";
  const head = h("div.stack");
  const body = h("div.stack");
  show(page.root, head, body);
  show(
    head,
    pageHead({ title: name, isName: true }),
    h(
      "div.card",
      null,
      facts(
        ["Status", "Partitions", "Messages", "Rate", "Size"].map((each) => [
          t(each),
          h("span.skeleton", { style: { width: "60px" } }),
        ]),
      ),
    ),
  );
  const told = await get(scope, page.signal);
  const drawHead = (row) => {
    const more = button(
      t("More"),
      () =>
        menu(more, [
          { text: t("New view"), onclick: () => createView(row) },
          { text: t("Add partitions"), onclick: () => addPartitions(scope, row) },
          { text: t("Retire partitions"), onclick: () => retirePartitions(scope, row) },
          { text: t("Delete messages before…"), onclick: () => deleteRecords(scope, row) },
          "-",
          { text: t("Delete topic"), danger: true, onclick: () => deleteTopic(scope, row) },
        ]),
      { symbol: "more" },
    );
    show(
      head,
      pageHead({
        title: name,
        isName: true,
        note: row.is_internal
          ? t("Internal: the brokers write it.")
          : told.view_of
            ? [
                t("A view of"),
                " ",
                h("a.mono", { href: at`/topics/${told.view_of}` }, told.view_of),
                " ",
                h("code", null, told.view_tags),
              ]
            : "",
        actions: [
          more,
          button(t("Produce"), () => go(`${at`/topics/${name}/messages`}?produce=1`), {
            kind: "primary",
            symbol: "send",
          }),
        ],
      }),
      h(
        "div.card",
        null,
        facts([
          [t("Status"), topicStatus(topicState(row))],
          [t("Partitions"), count(row.partition_count)],
          [t("Replicas"), count(row.replication_factor)],
          [t("Messages"), count(row.messages)],
          [t("Messages/s"), row.rate_per_s === null ? "–" : short(Math.round(row.rate_per_s * 10) / 10)],
          [t("Size"), bytes(row.size_bytes)],
          [t("Groups"), count(row.group_count)],
          [t("Lag"), count(row.lag)],
        ]),
      ),
    );
  };
  const row = told.topic;
  drawHead(row);
  const address = (key) => at`/topics/${name}/${key}`;
  body.before(
    tabs(
      [
        ["partitions", t("Partitions"), address("partitions"), count(row.partition_count)],
        ["segments", t("Segments"), address("segments")],
        ["messages", t("Messages"), address("messages")],
        ["groups", t("Groups"), address("groups"), count(told.readers.length)],
        ["settings", t("Settings"), address("settings")],
      ],
      tab,
    ),
  );
  page.every(5000, async () => {
    const now = (await get(scope, page.signal)).topic;
    drawHead(now);
  });
  await { partitions, segments, messages: messagesPanel, groups, settings }[tab](page, body, scope, row, told);
}

async function partitions(page, body, scope, row, told) {
  const named = (each) => partitionStatus({ ...each, retired_to: told.successors[each.index] });
  const chart = new LineChart({ label: t("Messages in per second"), legend: false });
  page.onclose(() => chart.close());
  const grid = new Grid({
    label: t("Partitions"),
    key: (each) => each.index,
    load: async (wanted) => get(`${scope}/partitions${rows(wanted, "")}`, page.signal),
    columns: [
      {
        key: "index",
        title: t("Partition"),
        cell: (each) => h("a", { href: `${at`/topics/${row.name}/messages`}?partition=${each.index}` }, each.index),
      },
      { key: "state", title: t("Status"), cell: named },
      {
        key: "leader",
        title: t("Leader"),
        cell: (each) => (each.leader === null ? "–" : t("broker {id}", { id: each.leader })),
      },
      {
        key: "replicas",
        title: t("Replicas"),
        phone: false,
        cell: (each) =>
          each.replicas.map((id) =>
            h(
              "span.tag",
              {
                title: each.isr.includes(id) ? t("in sync") : t("behind"),
                class: each.isr.includes(id) ? "" : "status warn",
              },
              id,
            ),
          ),
      },
      { key: "start", title: t("First offset"), num: true, phone: false, cell: (each) => count(each.start) },
      { key: "end", title: t("End offset"), num: true, cell: (each) => count(each.end) },
      {
        key: "messages",
        title: t("Messages"),
        num: true,
        phone: false,
        cell: (each) => (each.end === null || each.start === null ? "–" : count(each.end - each.start)),
      },
      { key: "size_bytes", title: t("Size"), num: true, phone: false, cell: (each) => bytes(each.size_bytes) },
    ],
  });
  show(
    body,
    card({ title: t("Messages in per second"), body: chart.element }),
    card({ title: t("Partitions"), count: count(row.partition_count), body: grid.element }),
  );
  const refresh = async () => {
    const [series] = await samples([`topic.${row.name}`], undefined, page.signal);
    chart.update([{ name: row.name, points: series.points, area: true }]);
  };
  page.every(5000, () => Promise.all([grid.reload({ quiet: true }), refresh()]));
  await Promise.all([grid.reload(), refresh().catch(() => {})]);
}

async function segments(page, body, scope, row) {
  const inSync = (each) =>
    each.is_leader
      ? status("ok", t("Leader"))
      : each.is_in_sync
        ? status("ok", t("In sync"))
        : status("warn", t("Behind"));
  const age = (ms) => (ms === null ? "–" : h("span", { title: time(ms) }, relative(ms)));
  const grid = new Grid({
    label: t("Log segments"),
    key: (each) => `${each.partition}/${each.broker}`,
    load: async (wanted) => get(`${scope}/segments${rows(wanted, "")}`, page.signal),
    empty: () => emptyState({ symbol: "topics", title: t("No replica is known yet") }),
    columns: [
      {
        key: "partition",
        title: t("Partition"),
        sort: true,
        cell: (each) => each.partition,
      },
      { key: "broker", title: t("Broker"), sort: true, cell: (each) => each.broker },
      { key: "state", title: t("Replica"), phone: false, cell: inSync },
      {
        key: "segments",
        title: t("Segments"),
        num: true,
        cell: (each) => (each.problem ? h("span.status.warn", { title: each.problem }, "–") : count(each.segments)),
      },
      { key: "first", title: t("First offset"), num: true, phone: false, cell: (each) => count(each.first_offset) },
      { key: "end", title: t("End offset"), num: true, phone: false, cell: (each) => count(each.end_offset) },
      { key: "size", title: t("Size"), num: true, phone: false, cell: (each) => bytes(each.size_bytes) },
      { key: "oldest", title: t("Oldest"), phone: false, cell: (each) => age(each.oldest_ms) },
      { key: "newest", title: t("Newest"), phone: false, cell: (each) => age(each.newest_ms) },
      {
        key: "act",
        title: "",
        class: "actions-cell",
        cell: (each) =>
          button(t("Show"), () => showSegments(scope, each), {
            small: true,
            title: t("Partition {n} on broker {id}", { n: each.partition, id: each.broker }),
          }),
      },
    ],
  });
  show(body, card({ title: t("Log segments"), body: grid.element }));
  page.every(5000, () => grid.reload({ quiet: true }));
  await grid.reload();
}

async function showSegments(scope, each) {
  const found = await act(() => get(`${scope}/partitions/${each.partition}/segments`));
  if (!found) return;
  const mine = found.filter((one) => one.broker === each.broker);
  drawer({
    title: t("Partition {n} on broker {id}", { n: each.partition, id: each.broker }),
    body: table(
      [
        { key: "base", title: t("First offset"), num: true, cell: (one) => count(one.base_offset) },
        { key: "end", title: t("End offset"), num: true, cell: (one) => count(one.end_offset) },
        { key: "size", title: t("Size"), num: true, cell: (one) => bytes(one.size_bytes) },
        { key: "first", title: t("Oldest"), cell: (one) => time(one.first_ms) },
        { key: "newest", title: t("Newest"), cell: (one) => time(one.newest_ms) },
      ],
      mine,
      {
        key: (one) => one.base_offset,
        label: t("Log segments"),
        empty: () =>
          emptyState({
            symbol: "topics",
            title: t("No segments"),
            text: t("Nothing was ever appended here, or the broker does not tell of them."),
          }),
      },
    ),
  });
}

function partitionStatus(each) {
  if (each.retired_to !== undefined && each.retired_to !== null)
    return status("idle", t("Retired to {n}", { n: each.retired_to }));
  if (each.leader === null) return status("error", t("Offline"));
  return each.isr.length < each.replicas.length ? status("warn", t("Behind")) : status("ok", t("In sync"));
}

async function groups(page, body, scope, row, told) {
  const found = told.readers;
  const most = Math.max(1, ...found.map((each) => each.lag));
  show(
    body,
    card({
      title: t("Groups that read this topic"),
      count: count(found.length),
      body: table(
        [
          {
            key: "name",
            title: t("Group"),
            name: true,
            cell: (each) => h("a", { href: at`/groups/${each.group}` }, each.group),
          },
          { key: "state", title: t("State"), cell: (each) => groupStatus(each.state) },
          { key: "members", title: t("Members"), num: true, cell: (each) => count(each.members) },
          { key: "lag", title: t("Lag on this topic"), num: true, cell: (each) => lagCell(each.lag, most) },
        ],
        found,
        {
          key: (each) => each.group,
          onrow: (each) => go(at`/groups/${each.group}`),
          empty: () =>
            emptyState({
              symbol: "groups",
              title: t("No group reads this topic"),
              text: t("A group appears here once it has committed an offset."),
              commands: [`kcat -b ${bootstrap()} -G my-group ${row.name}`],
            }),
        },
      ),
    }),
  );
}

async function settings(page, body, scope, row) {
  const found = await get(`${scope}/settings`, page.signal);
  let search = "";
  const holder = h("div");
  const drawRows = () => {
    const rows = found.filter(
      (each) =>
        !search ||
        each.name.includes(search) ||
        (each.description?.doc ?? "").toLowerCase().includes(search.toLowerCase()),
    );
    show(
      holder,
      table(
        [
          {
            key: "name",
            title: t("Setting"),
            cell: (each) =>
              h(
                "div",
                { style: { "white-space": "normal", padding: "7px 0", "max-width": "560px" } },
                h("code", null, each.name),
                each.description?.doc ? h("div.muted", null, each.description.doc) : null,
              ),
          },
          {
            key: "value",
            title: t("Value"),
            cell: (each) =>
              h(
                "div",
                { style: { "white-space": "normal", "overflow-wrap": "anywhere", "min-width": "110px" } },
                h("code", null, each.value === "" || each.value === null ? "–" : each.value),
                reading(each.name, each.value) ? h("div.muted", null, reading(each.name, each.value)) : null,
              ),
          },
          {
            key: "source",
            title: t("From"),
            phone: false,
            cell: (each) => (each.is_default ? h("span.muted", null, t("default")) : status("ok", t("this topic"))),
          },
          {
            key: "edit",
            title: "",
            class: "actions-cell",
            cell: (each) =>
              each.is_read_only
                ? null
                : iconButton("edit", t("Change {name}", { name: each.name }), () => editSetting(scope, each)),
          },
        ],
        rows,
        {
          key: (each) => each.name,
          label: t("Settings"),
          stacked: true,
          empty: () => emptyState({ symbol: "search", title: t("No setting matches") }),
        },
      ),
    );
  };
  drawRows();
  show(
    body,
    card({
      title: t("Settings"),
      count: count(found.length),
      tools: [
        filterBox(t("Filter settings"), (text) => {
          search = text;
          drawRows();
        }),
      ],
      body: holder,
    }),
  );
}

function editSetting(scope, each) {
  const about = each.description ?? {};
  const choices = about.choices?.length ? about.choices.map((value) => [value, value]) : null;
  const control =
    choices && about.kind !== "list"
      ? select(choices, each.value)
      : input({ value: each.value ?? "", class: "mono", autofocus: true });
  const means = h("span");
  const say = () =>
    show(
      means,
      reading(each.name, control.value) ? t("That is {value}.", { value: reading(each.name, control.value) }) : "",
    );
  control.addEventListener("input", say);
  say();
  const presets =
    PRESETS[each.name]?.length && !choices
      ? h(
          "div.row.wrap",
          null,
          PRESETS[each.name].map(([value, text]) =>
            h(
              "button.filter-chip",
              {
                type: "button",
                onclick: () => {
                  control.value = value;
                  say();
                },
              },
              text,
            ),
          ),
        )
      : null;
  const reset = each.is_default
    ? null
    : button(
        t("Back to the default"),
        async () => {
          opened.close();
          await act(
            () => patch(`${scope}/settings`, { set: {}, delete: [each.name] }),
            t("{name} is reset to its default", { name: each.name }),
          );
          draw();
        },
        { kind: "ghost" },
      );
  const opened = form({
    title: each.name,
    action: t("Save"),
    body: [
      about.doc ? h("p", null, about.doc) : null,
      field(t("Value"), control, means),
      presets,
      h("p.muted", null, t("Default: {value}", { value: about.default ?? t("of the cluster") }), " ", reset),
    ],
    submit: async () => {
      await patch(`${scope}/settings`, { set: { [each.name]: control.value } });
      toast("ok", t("{name} is now {value}", { name: each.name, value: control.value }));
      draw();
    },
  });
}

function createView(row) {
  const name = input({ value: `${row.name}.`, class: "mono", autofocus: true });
  const tags = input({ class: "mono", placeholder: "eu and not test" });
  form({
    title: t("New view of {name}", { name: row.name }),
    action: t("Create view"),
    body: [
      field(t("Name"), name, t("Consumers read the view by this name, as any topic.")),
      field(t("Tags"), tags, t("An expression over tags: and, or, not, brackets.")),
    ],
    submit: async () => {
      await post(path`/clusters/${state.cluster}/topics/views`, {
        name: name.value,
        view_of: row.name,
        tags: tags.value,
      });
      toast("ok", t("View {name} is created", { name: name.value }));
      go(at`/topics/${name.value}`);
    },
  });
}

function addPartitions(scope, row) {
  const total = input({
    type: "number",
    min: row.partition_count + 1,
    value: String(row.partition_count + 1),
    autofocus: true,
  });
  form({
    title: t("Add partitions to {name}", { name: row.name }),
    action: t("Add"),
    body: [
      banner(
        "warn",
        t("Keys move"),
        t("Messages with a key go to other partitions from now on; order by key is kept only within a partition."),
      ),
      field(t("Partitions in total"), total, plural(row.partition_count, "{n} partition now", "{n} partitions now")),
    ],
    submit: async () => {
      await put(`${scope}/partitions`, { total: Number(total.value) });
      toast("ok", t("{name} has {n} partitions", { name: row.name, n: total.value }));
      draw();
    },
  });
}

function retirePartitions(scope, row) {
  const which = input({ class: "mono", placeholder: `${row.partition_count - 1}`, autofocus: true });
  form({
    title: t("Retire partitions of {name}", { name: row.name }),
    action: t("Retire"),
    danger: true,
    body: [
      h(
        "p",
        null,
        t(
          "A retired partition takes no new messages; they go to its successor, with their keys' order kept. Groups read what is left, then the partition is done with.",
        ),
      ),
      field(t("Partitions"), which, t("Numbers with commas.")),
    ],
    submit: async () => {
      await post(`${scope}/retirement`, { partitions: which.value.split(",").map((each) => Number(each.trim())) });
      toast("ok", t("Partitions {list} are retired", { list: which.value }));
      draw();
    },
  });
}

function deleteRecords(scope, row) {
  const partition = input({ type: "number", min: 0, max: row.partition_count - 1, value: "0" });
  const offset = input({ type: "number", min: 0, autofocus: true });
  const typed = checkbox(t("I know that these messages cannot be brought back"), false, (isOn) => {
    opened.go.disabled = !isOn;
  });
  const opened = form({
    title: t("Delete messages of {name}", { name: row.name }),
    action: t("Delete messages"),
    danger: true,
    body: [
      h(
        "div.fields",
        null,
        field(t("Partition"), partition),
        field(t("Before offset"), offset, t("Everything before it is deleted, for every group.")),
      ),
      typed,
    ],
    submit: async () => {
      const done = await post(`${scope}/records-deletion`, {
        before: { [partition.value]: Number(offset.value) },
        confirm: row.name,
      });
      if (!done[0].is_done)
        throw Object.assign(new Error(done[0].error), { title: t("Nothing was deleted"), status: 400 });
      toast(
        "ok",
        t("Messages before {offset} in partition {n} are deleted", {
          offset: count(Number(offset.value)),
          n: partition.value,
        }),
      );
      draw();
    },
  });
  opened.go.disabled = true;
}

function deleteTopic(scope, row) {
  confirmTyped({
    title: t("Delete topic {name}", { name: row.name }),
    text: t("All {n} messages are deleted on every broker.", { n: count(row.messages ?? 0) }),
    consequences: [
      row.group_count
        ? plural(row.group_count, "{n} group reads it and will fail", "{n} groups read it and will fail")
        : t("No group reads it."),
      row.rate_per_s
        ? t("Producers write {n} messages a second to it now.", { n: short(Math.round(row.rate_per_s)) })
        : t("No producer writes to it now."),
    ],
    name: row.name,
    action: t("Delete topic"),
    submit: async (confirm) => {
      await post(`${scope}/deletion`, { confirm });
      toast("ok", t("Topic {name} is deleted", { name: row.name }));
      go(at`/topics`);
    },
  });
}
