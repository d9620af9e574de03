// One group: lag by partition and over time, members, live reset, pause and resume.
import { get, path, post, query } from "../api.js";
import { LineChart } from "../charts.js";
import {
  banner,
  button,
  card,
  chips,
  emptyState,
  facts,
  field,
  groupStatus,
  input,
  lagCell,
  pageHead,
  radioOptions,
  tabs,
} from "../components.js";
import { act, confirm, confirmTyped, form, menu, toast } from "../dialogs.js";
import { h, show } from "../dom.js";
import { count, duration, localInput, parseTime, short, time } from "../format.js";
import { filterBox, Grid, table } from "../grid.js";
import { at, draw, go, state } from "../router.js";
import { samples } from "../history.js";
import { plural, t } from "../translations.js";

export async function group(page) {
  const name = page.params.group;
  const scope = path`/clusters/${state.cluster}/groups/${name}`;
  const tab = page.params.tab === "members" ? "members" : "lag";
  const head = h("div.stack");
  const body = h("div.stack");
  show(page.root, head, body);
  show(
    head,
    pageHead({ title: name, isName: true }),
    h(
      "div.card",
      null,
      facts(["State", "Members", "Lag"].map((each) => [t(each), h("span.skeleton", { style: { width: "60px" } })])),
    ),
  );
  // What the poller has seen over time is in the list: speed, and when the group will have caught up.
  const look = async () => {
    const list = path`/clusters/${state.cluster}/groups` + query({ text: name, limit: 50 });
    const [detail, rows] = await Promise.all([get(scope, page.signal), get(list, page.signal)]);
    const known = rows.items.find((each) => each.name === name);
    return { ...detail, rate_per_s: known?.rate_per_s, eta_s: known?.eta_s };
  };
  const told = await look();
  const drawHead = (row) =>
    show(
      head,
      pageHead({ title: name, isName: true, actions: actions(scope, row) }),
      pauseBanner(scope, row),
      h(
        "div.card",
        null,
        facts([
          [t("State"), groupStatus(row.state, isPaused(row))],
          [t("Members"), count(row.members.length)],
          [t("Lag"), count(row.lag)],
          [
            t("Messages/s"),
            row.rate_per_s === null || row.rate_per_s === undefined ? "–" : short(Math.round(row.rate_per_s * 10) / 10),
          ],
          [t("Caught up in"), row.lag === 0 ? t("caught up") : row.eta_s ? duration(row.eta_s * 1000) : "–"],
          [t("Assignor"), row.assignor || "–"],
        ]),
      ),
    );
  drawHead(told);
  body.before(
    tabs(
      [
        ["lag", t("Lag by partition"), at`/groups/${name}`, count(told.partitions.length)],
        ["members", t("Members"), at`/groups/${name}/members`, count(told.members.length)],
      ],
      tab,
    ),
  );
  if (tab === "members") drawMembers(body, told);
  const update = tab === "lag" ? drawLag(page, body, name, scope, told) : (row) => drawMembers(body, row);
  page.every(3000, async () => {
    const row = await look();
    drawHead(row);
    await update(row);
  });
}

function actions(scope, row) {
  const more = button(
    t("More"),
    () =>
      menu(more, [
        { text: t("Pause one topic"), onclick: () => pauseTopic(scope, row) },
        { text: t("Delete offsets of a topic"), danger: true, onclick: () => deleteOffsets(scope, row) },
        "-",
        { text: t("Delete group"), danger: true, onclick: () => deleteGroup(scope, row) },
      ]),
    { symbol: "more" },
  );
  const pause = isPaused(row)
    ? button(
        t("Resume"),
        () =>
          act(() => post(`${scope}/resume`, { topics: [] }), t("{name} reads again", { name: row.name })).then(draw),
        { symbol: "play" },
      )
    : button(
        t("Pause"),
        () =>
          confirm({
            title: t("Pause {name}", { name: row.name }),
            text: t(
              "Brokers stop sending messages to this group; members stay joined and lag grows. Resume it here at any time.",
            ),
            action: t("Pause"),
            danger: false,
            submit: async () => {
              await post(`${scope}/pause`, { topics: [] });
              toast("ok", t("{name} is paused", { name: row.name }));
              draw();
            },
          }),
        { symbol: "pause" },
      );
  return [
    more,
    pause,
    button(t("Reset offsets"), () => resetOffsets(scope, row), { kind: "primary", symbol: "reset" }),
  ];
}

const isPaused = (row) => row.paused_all || row.paused_topics.length > 0;

function pauseBanner(scope, row) {
  if (!isPaused(row)) return null;
  const what = row.paused_all
    ? t("This group is paused: brokers send it nothing.")
    : t("Paused for {topics}: brokers send it nothing from there.", { topics: row.paused_topics.join(", ") });
  return banner("warn", what, t("Lag grows until it is resumed."));
}

function drawMembers(body, row) {
  show(
    body,
    card({
      title: t("Members"),
      count: count(row.members.length),
      body: table(
        [
          { key: "client_id", title: t("Client"), name: true, cell: (each) => each.client_id || "–" },
          { key: "host", title: t("Address"), cell: (each) => each.host },
          { key: "instance", title: t("Static id"), phone: false, cell: (each) => each.instance_id ?? "–" },
          {
            key: "partitions",
            title: t("Partitions"),
            cell: (each) =>
              h(
                "div.row.wrap",
                { style: { padding: "6px 0", "white-space": "normal" } },
                Object.entries(each.partitions).map(([topic, list]) =>
                  h("span.tag.mono", null, `${topic}: ${list.join(", ")}`),
                ),
              ),
          },
          { key: "id", title: t("Member id"), clip: true, phone: false, cell: (each) => each.id },
        ],
        row.members,
        {
          key: (each) => each.id,
          empty: () =>
            emptyState({
              symbol: "groups",
              title: t("No members"),
              text: t("No consumer reads for this group now; its offsets stay."),
            }),
        },
      ),
    }),
  );
}

function drawLag(page, body, name, scope, told) {
  let search = "";
  let rows = told.partitions;
  let most = 1;
  const chart = new LineChart({ label: t("Lag over time"), legend: false });
  page.onclose(() => chart.close());
  const grid = new Grid({
    label: t("Lag by partition"),
    key: (each) => `${each.topic}-${each.partition}`,
    sort: ["topic", false],
    load: async () => ({ items: rows, total: rows.length }),
    empty: () =>
      emptyState({
        symbol: "groups",
        title: t("No offsets"),
        text: t("The group has committed nothing yet, or nothing matches."),
      }),
    columns: [
      {
        key: "topic",
        title: t("Topic"),
        name: true,
        cell: (each) => h("a", { href: at`/topics/${each.topic}` }, each.topic),
      },
      { key: "partition", title: t("Partition"), num: true, cell: (each) => each.partition },
      {
        key: "committed",
        title: t("Committed"),
        num: true,
        phone: false,
        cell: (each) =>
          h(
            "a",
            {
              href: `${at`/topics/${each.topic}/messages`}?partition=${each.partition}&from=offset&offset=${each.committed}`,
            },
            count(each.committed),
          ),
      },
      { key: "end", title: t("End offset"), num: true, phone: false, cell: (each) => count(each.end) },
      { key: "lag", title: t("Lag"), num: true, cell: (each) => lagCell(each.lag, most) },
      { key: "member", title: t("Read by"), phone: false, clip: true, cell: (each) => each.member || "–" },
    ],
  });
  const update = async (row) => {
    const clients = new Map(row.members.map((member) => [member.id, member.client_id]));
    rows = row.partitions
      .map((each) => ({ ...each, member: clients.get(each.member) ?? "" }))
      .filter((each) => !search || each.topic.includes(search));
    most = Math.max(1, ...rows.map((each) => each.lag ?? 0));
    grid.setRows(rows);
    const [series] = await samples([`group.${name}`], undefined, page.signal);
    chart.update([{ name, points: [...series.points, [Date.now(), row.lag]], area: true, colour: 3 }]);
  };
  show(
    body,
    card({ title: t("Lag over time"), body: chart.element }),
    card({
      title: t("Lag by partition"),
      count: count(told.partitions.length),
      tools: [
        filterBox(t("Filter by topic"), (text) => {
          search = text;
          update(told).catch(() => {});
        }),
      ],
      body: grid.element,
    }),
  );
  update(told).catch(() => {});
  return update;
}

const TARGETS = () => [
  ["earliest", t("Beginning"), t("Read everything that is still there again.")],
  ["latest", t("End"), t("Skip what is waiting; start with what comes now.")],
  ["time", t("A time"), t("Start with the first message at or after it.")],
  ["offset", t("An offset"), t("The same number in each chosen partition, or one for each.")],
  ["shift", t("Shift"), t("Number of messages back (−) or forward (+).")],
];

/** The reset dialog: choose where to, for which partitions, see what is skipped or repeated, then do it, live. */
function resetOffsets(scope, row) {
  let target = "earliest";
  let plan = null;
  const value = h("div");
  const preview = h("div");
  const chosen = new Grid({
    label: t("Partitions to reset"),
    selectable: true,
    key: (each) => `${each.topic}:${each.partition}`,
    load: async () => ({ items: shown(), total: shown().length }),
    onselect: () => stale(),
    columns: [
      { key: "topic", title: t("Topic"), name: true, cell: (each) => h("span.mono", null, each.topic) },
      { key: "partition", title: t("Partition"), num: true, cell: (each) => each.partition },
      { key: "committed", title: t("Now at"), num: true, cell: (each) => count(each.committed) },
      { key: "end", title: t("End"), num: true, cell: (each) => count(each.end) },
      {
        key: "to",
        title: t("To"),
        num: true,
        cell: (each) => (target === "offset" ? offsetInput(each) : h("span.muted", null, planned(each))),
      },
    ],
  });
  let search = "";
  const typed = new Map();
  const shown = () => row.partitions.filter((each) => !search || each.topic.includes(search));
  const moment = input({ type: "datetime-local", step: "1", value: localInput(Date.now() - 3600000) });
  const shift = input({ type: "number", value: "-100" });
  const offsetInput = (each) => {
    const key = `${each.topic}:${each.partition}`;
    const box = input({
      type: "number",
      min: 0,
      value: String(typed.get(key) ?? each.committed),
      "aria-label": t("Offset for {name}", { name: key }),
      style: { width: "110px", height: "26px" },
    });
    box.addEventListener("input", () => {
      typed.set(key, Number(box.value));
      chosen.select(key, true);
      const mark = box.closest("tr").querySelector("input[type=checkbox]");
      mark.checked = true;
    });
    return box;
  };
  const planned = (each) => {
    const found = plan?.rows.find((one) => one.topic === each.topic && one.partition === each.partition);
    return found ? count(found.after) : "–";
  };
  const drawValue = () =>
    show(
      value,
      target === "time"
        ? field(t("Time (UTC)"), moment)
        : target === "shift"
          ? field(t("Messages"), shift, t("−100 repeats the last hundred of each partition."))
          : null,
    );
  const stale = () => {
    plan = null;
    show(preview, h("p.muted", null, t("Preview to see what is skipped or repeated.")));
    opened.go.disabled = true;
  };
  // One wish for each number: several partitions may go to several offsets.
  const wishes = () => {
    const marked = shown().filter((each) => chosen.selected.has(`${each.topic}:${each.partition}`));
    const number = (each) =>
      target === "offset"
        ? (typed.get(`${each.topic}:${each.partition}`) ?? each.committed ?? 0)
        : target === "time"
          ? parseTime(moment.value)
          : target === "shift"
            ? Number(shift.value)
            : 0;
    const found = new Map();
    for (const each of marked)
      found.set(number(each), [...(found.get(number(each)) ?? []), { topic: each.topic, partition: each.partition }]);
    return [...found].map(([value, partitions]) => ({ to: target, value, partitions }));
  };
  const ask = async (address) => {
    const told = [];
    for (const wish of wishes()) told.push(await post(address, wish));
    return {
      rows: told.flatMap((each) => each.rows),
      skipped: sum(told, "skipped"),
      repeated: sum(told, "repeated"),
      members: told[0]?.members ?? 0,
    };
  };
  const look = async () => {
    if (!chosen.selected.size) {
      show(preview, banner("warn", t("Choose at least one partition"), ""));
      return;
    }
    try {
      plan = await ask(`${scope}/reset-preview`);
      show(preview, drawPlan(plan, row));
      chosen.drawRows();
      opened.go.disabled = false;
    } catch (problem) {
      show(preview, banner("error", problem.title, problem.message));
    }
  };
  const opened = form({
    title: t("Reset offsets of {name}", { name: row.name }),
    action: t("Reset offsets"),
    wide: true,
    danger: true,
    note: row.members.length ? t("Works while the group runs: members continue from the new offsets.") : "",
    body: [
      h(
        "div.columns",
        null,
        h(
          "div.col-5.stack",
          null,
          h("div.section-title.tall", null, t("Start from")),
          radioOptions(TARGETS(), target, (key) => {
            target = key;
            drawValue();
            chosen.drawRows();
            stale();
          }),
          value,
        ),
        h(
          "div.col-7.stack",
          null,
          h(
            "div.section-title.tall",
            null,
            t("Partitions"),
            filterBox(t("Filter by topic"), (text) => {
              search = text;
              chosen.setRows(shown());
            }),
          ),
          h("div.card", null, chosen.element),
        ),
      ),
      h("div.row.wrap", null, button(t("Preview"), look, { symbol: "search" }), h("div.grow", null, preview)),
    ],
    submit: async () => {
      const done = await ask(`${scope}/reset`);
      const failed = done.rows.filter((each) => each.problem);
      toast(
        failed.length ? "warn" : "ok",
        plural(done.rows.length - failed.length, "{n} partition is reset", "{n} partitions are reset"),
        failed.length ? t("{n} failed: {why}", { n: failed.length, why: failed[0].problem }) : "",
      );
      draw();
    },
  });
  chosen.setRows(shown());
  chosen.selectAll(true);
  stale();
  for (const box of [moment, shift]) box.addEventListener("input", stale);
  drawValue();
}

const sum = (list, name) => list.reduce((total, each) => total + each[name], 0);

function drawPlan(plan, row) {
  const { skipped, repeated } = plan;
  const words = [
    skipped ? t("{n} messages will be skipped", { n: count(skipped) }) : "",
    repeated ? t("{n} messages will be read again", { n: count(repeated) }) : "",
  ].filter(Boolean);
  const failed = plan.rows.filter((each) => each.problem);
  const errors = failed.length
    ? t("{n} partitions cannot be reset: {why}", { n: failed.length, why: failed[0].problem })
    : "";
  return banner(
    skipped ? "warn" : "",
    words.join(" · ") || t("Nothing changes: the offsets are already there."),
    [
      row.members.length
        ? plural(row.members.length, "{n} member continues from there.", "{n} members continue from there.")
        : t("No member runs now."),
      errors,
    ]
      .filter(Boolean)
      .join(" "),
  );
}

function pauseTopic(scope, row) {
  const names = [...new Set(row.partitions.map((each) => each.topic))];
  let chosen = names[0];
  form({
    title: t("Pause a topic for {name}", { name: row.name }),
    action: t("Pause"),
    body: [
      h("p", null, t("The group continues with its other topics.")),
      chips(
        names.map((each) => [each, each]),
        chosen,
        (key) => {
          chosen = key;
        },
      ),
    ],
    submit: async () => {
      await post(`${scope}/pause`, { topics: [chosen] });
      toast("ok", t("{name} is paused for {topic}", { name: row.name, topic: chosen }));
      draw();
    },
  });
}

function deleteOffsets(scope, row) {
  const names = [...new Set(row.partitions.map((each) => each.topic))];
  let chosen = names[0];
  form({
    title: t("Delete offsets of {name}", { name: row.name }),
    action: t("Delete offsets"),
    danger: true,
    body: [
      h(
        "p",
        null,
        t(
          "The group forgets where it was in this topic, and starts by its own rule (auto.offset.reset) when it reads it again.",
        ),
      ),
      chips(
        names.map((each) => [each, each]),
        chosen,
        (key) => {
          chosen = key;
        },
      ),
    ],
    submit: async () => {
      await post(`${scope}/offset-deletion`, {
        partitions: row.partitions
          .filter((each) => each.topic === chosen && each.committed !== null)
          .map((each) => ({ topic: each.topic, partition: each.partition })),
      });
      toast("ok", t("Offsets of {topic} are deleted", { topic: chosen }));
      draw();
    },
  });
}

function deleteGroup(scope, row) {
  confirmTyped({
    title: t("Delete group {name}", { name: row.name }),
    text: t("The group's offsets are deleted; it starts anew when a member joins."),
    consequences: [
      row.members.length
        ? plural(
            row.members.length,
            "{n} member is joined: stop it first, or this is refused",
            "{n} members are joined: stop them first, or this is refused",
          )
        : t("It has no members."),
      t("Lag now: {n}", { n: count(row.lag) }),
    ],
    name: row.name,
    action: t("Delete group"),
    submit: async (typedName) => {
      await post(`${scope}/deletion`, { confirm: typedName });
      toast("ok", t("Group {name} is deleted", { name: row.name }));
      go(at`/groups`);
    },
  });
}

export { time };
