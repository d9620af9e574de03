// Brokers: load, disks, replicas; drain and undrain; moves of partitions that are under way.
import { get, path, post, put } from "../api.js";
import {
  bytesTile,
  button,
  card,
  emptyState,
  field,
  input,
  meter,
  numberTile,
  pageHead,
  status,
  tile,
} from "../components.js";
import { confirm, confirmTyped, form, toast } from "../dialogs.js";
import { h, show } from "../dom.js";
import { bytes, count, percent, short } from "../format.js";
import { table } from "../grid.js";
import { at, draw, state } from "../router.js";
import { t } from "../translations.js";

const STATES = {
  alive: ["ok", "Up"],
  draining: ["warn", "Draining"],
  silent: ["error", "Silent"],
  away: ["error", "Away"],
};

export function brokerStatus(value) {
  const [kind, text] = STATES[String(value).toLowerCase()] ?? ["idle", value];
  return status(kind, t(text));
}

export async function brokers(page) {
  const scope = path`/clusters/${state.cluster}`;
  const tiles = h("div.kpis");
  const list = h("div");
  const moves = h("div");
  show(
    page.root,
    pageHead({ title: t("Brokers"), note: t("What each broker leads and stores. Drain a broker before you remove it.") }),
    tiles,
    list,
    moves,
  );
  const refresh = async () => {
    const [found, under, throttle] = await Promise.all([
      get(`${scope}/brokers`, page.signal),
      get(`${scope}/moves`, page.signal),
      get(`${scope}/moves/throttle`, page.signal).catch(() => null),
    ]);
    const rows = found;
    const disks = rows.flatMap((each) => each.disks);
    const used = disks.reduce((sum, each) => sum + each.used_bytes, 0);
    const size = disks.reduce((sum, each) => sum + (each.total_bytes ?? 0), 0);
    const behind = rows.reduce((sum, each) => sum + each.out_of_sync, 0);
    show(
      tiles,
      numberTile({
        label: t("Brokers"),
        value: rows.length,
        note: t("{n} up", { n: rows.filter((each) => STATES[String(each.state).toLowerCase()]?.[0] === "ok").length }),
        noteKind: "ok",
      }),
      numberTile({
        label: t("Leaders"),
        value: rows.reduce((sum, each) => sum + each.leaders, 0),
        note: t("{n} replicas", { n: count(rows.reduce((sum, each) => sum + each.replicas, 0)) }),
      }),
      tile({
        label: t("Out of sync"),
        value: count(behind),
        note: behind ? t("replicas behind their leader") : t("all replicas in sync"),
        noteKind: behind ? "warn" : "ok",
      }),
      bytesTile({
        label: t("Logs"),
        value: used,
        note: size ? t("{share} % of {total}", { share: percent(used / size), total: bytes(size) }) : "",
      }),
    );
    const most = Math.max(1, ...rows.map((each) => each.leaders));
    show(
      list,
      card({
        title: t("Brokers"),
        count: count(rows.length),
        body: table(
          [
            {
              key: "id",
              title: t("Broker"),
              cell: (each) =>
                h(
                  "span",
                  null,
                  h("b", null, each.id),
                  each.is_controller ? h("span.tag", { style: { "margin-left": "8px" } }, t("controller")) : null,
                ),
            },
            { key: "state", title: t("Status"), cell: (each) => brokerStatus(each.state) },
            { key: "address", title: t("Address"), phone: false, cell: (each) => h("code", null, each.address ?? "–") },
            { key: "rack", title: t("Rack"), phone: false, cell: (each) => each.rack ?? "–" },
            {
              key: "leaders",
              title: t("Leaders"),
              num: true,
              cell: (each) => h("span.lag-cell", null, count(each.leaders), meterPlain(each.leaders / most)),
            },
            { key: "replicas", title: t("Replicas"), num: true, phone: false, cell: (each) => count(each.replicas) },
            {
              key: "rate",
              title: t("Messages/s"),
              num: true,
              phone: false,
              cell: (each) => (each.rate_per_s === null ? "–" : short(Math.round(each.rate_per_s))),
            },
            { key: "disk", title: t("Disk"), num: true, cell: (each) => diskCell(each) },
            {
              key: "act",
              title: "",
              class: "actions-cell",
              cell: (each) =>
                each.state === "draining"
                  ? button(t("Undrain"), () => undrain(scope, each), { small: true })
                  : button(t("Drain"), () => drain(scope, each), { small: true }),
            },
          ],
          rows,
          { key: (each) => each.id },
        ),
      }),
    );
    const going = under.map((each) => ({ ...each, ...each.move, ...each.move.partition }));
    const limits = [...new Set(Object.values(throttle?.bytes_per_s ?? {}))];
    const limit = limits.length === 1 ? limits[0] : limits.find((each) => each !== null);
    show(
      moves,
      card({
        title: t("Moves"),
        count: [
          count(going.length),
          limit === null || limit === undefined ? "" : t("at most {rate}/s into a broker", { rate: bytes(limit) }),
        ]
          .filter(Boolean)
          .join(" · "),
        tools: [
          button(t("Throttle"), () => throttleDialog(scope, limit), { small: true }),
          button(t("Move a partition"), () => moveDialog(scope, rows), { small: true }),
        ],
        body: table(
          [
            {
              key: "topic",
              title: t("Partition"),
              name: true,
              cell: (each) => h("a", { href: at`/topics/${each.topic}` }, `${each.topic}-${each.partition}`),
            },
            { key: "replicas", title: t("Replicas"), phone: false, cell: (each) => each.replicas.join(", ") },
            { key: "progress", title: t("Arrived"), num: true, cell: progressCell },
            { key: "adding", title: t("Arriving"), cell: (each) => each.adding.join(", ") || "–" },
            { key: "removing", title: t("Leaving"), cell: (each) => each.removing.join(", ") || "–" },
            {
              key: "act",
              title: "",
              class: "actions-cell",
              cell: (each) =>
                button(
                  t("Cancel move"),
                  () =>
                    confirm({
                      title: t("Cancel the move of {name}", { name: `${each.topic}-${each.partition}` }),
                      text: t("The partition stays on its old brokers."),
                      action: t("Cancel move"),
                      submit: async () => {
                        await post(`${scope}/moves/cancellation`, {
                          partitions: [{ topic: each.topic, partition: each.partition }],
                        });
                        toast("ok", t("The move is cancelled"));
                        await refresh();
                      },
                    }),
                  { small: true },
                ),
            },
          ],
          going,
          {
            key: (each) => `${each.topic}-${each.partition}`,
            empty: () =>
              emptyState({
                symbol: "check",
                title: t("No partition is moving"),
                text: t("Partitions move when you drain a broker or add one. Their progress shows here."),
              }),
          },
        ),
      }),
    );
  };
  page.every(5000, refresh);
  await refresh();
}

const meterPlain = (share) =>
  h("span.meter", { "aria-hidden": "true" }, h("i", { style: { width: `${share * 100}%` } }));

function diskCell(each) {
  const disk = each.disks[0];
  if (!disk) return "–";
  if (!disk.total_bytes) return bytes(disk.used_bytes);
  const full = 1 - (disk.usable_bytes ?? disk.total_bytes - disk.used_bytes) / disk.total_bytes;
  return h(
    "span.lag-cell",
    {
      title: t("{used} of logs; {free} free of {total}", {
        used: bytes(disk.used_bytes),
        free: bytes(disk.usable_bytes),
        total: bytes(disk.total_bytes),
      }),
    },
    bytes(disk.used_bytes),
    meter(full, t("disk {share} % full", { share: Math.round(full * 100) })),
  );
}

function progressCell(each) {
  if (!each.adding.length || each.size_bytes === null || each.arrived_bytes === null) return "–";
  const share = each.size_bytes ? Math.min(1, each.arrived_bytes / each.size_bytes) : 1;
  return h(
    "span.lag-cell",
    { title: t("{part} of {total}", { part: bytes(each.arrived_bytes), total: bytes(each.size_bytes) }) },
    `${Math.floor(share * 100)} %`,
    meterPlain(share),
  );
}

function throttleDialog(scope, limit) {
  const rate = input({
    type: "number",
    min: 0,
    step: "any",
    value: limit === null || limit === undefined ? "" : String(limit / 1e6),
    autofocus: true,
  });
  form({
    title: t("Throttle moves"),
    action: t("Save"),
    body: [
      field(
        t("MB a second into each broker"),
        rate,
        t("Empty: the brokers' configuration counts; 0 stops moves. Running moves follow at once."),
      ),
    ],
    submit: async () => {
      await put(`${scope}/moves/throttle`, {
        bytes_per_s: rate.value === "" ? null : Math.round(Number(rate.value) * 1e6),
      });
      toast("ok", rate.value === "" ? t("The console's throttle of moves is removed") : t("Moves are throttled"));
      draw();
    },
  });
}

function moveDialog(scope, brokers) {
  const topic = input({ class: "mono", autofocus: true });
  const partition = input({ type: "number", min: 0, value: "0" });
  const replicas = input({ class: "mono", placeholder: brokers.map((each) => each.id).join(",") });
  form({
    title: t("Move a partition"),
    action: t("Move"),
    body: [
      h("div.fields", null, field(t("Topic"), topic), field(t("Partition"), partition)),
      field(
        t("Brokers"),
        replicas,
        t("Numbers with commas, the preferred leader first. Clients keep working while it is copied."),
      ),
    ],
    submit: async () => {
      const [done] = await post(`${scope}/moves`, {
        moves: [
          {
            topic: topic.value.trim(),
            partition: Number(partition.value),
            replicas: replicas.value.split(",").map((each) => Number(each.trim())),
          },
        ],
      });
      if (!done.is_done) throw Object.assign(new Error(done.error), { title: t("Nothing was moved"), status: 400 });
      toast("ok", t("{name} is being moved", { name: done.item }));
      draw();
    },
  });
}

function drain(scope, each) {
  confirmTyped({
    title: t("Drain broker {id}", { id: each.id }),
    text: t("Every partition on it moves to other brokers; it takes no new ones."),
    consequences: [
      t("{n} replicas move, {leaders} of them leaders.", { n: count(each.replicas), leaders: count(each.leaders) }),
      t("Undrain brings it back into use; what has moved stays moved."),
    ],
    name: String(each.id),
    action: t("Drain"),
    submit: async () => {
      await put(`${scope}/brokers/${each.id}/draining`, { draining: true });
      toast("ok", t("Broker {id} is being drained", { id: each.id }));
      draw();
    },
  });
}

function undrain(scope, each) {
  confirm({
    title: t("Undrain broker {id}", { id: each.id }),
    text: t("It may hold partitions again."),
    action: t("Undrain"),
    danger: false,
    submit: async () => {
      await put(`${scope}/brokers/${each.id}/draining`, { draining: false });
      toast("ok", t("Broker {id} is in use again", { id: each.id }));
      draw();
    },
  });
}
