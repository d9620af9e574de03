// Alerts: what fires, rules and where they tell of it, silences, history.
import { del, get, post, put, query } from "../api.js";
import {
  button,
  card,
  checkbox,
  emptyState,
  field,
  iconButton,
  input,
  pageHead,
  select,
  status,
  tabs,
  textarea,
} from "../components.js";
import { act, confirm, form, toast } from "../dialogs.js";
import { h, show } from "../dom.js";
import { count, duration, relative, time } from "../format.js";
import { table } from "../grid.js";
import { at, draw, state } from "../router.js";
import { t } from "../translations.js";

const KINDS = () => ({
  lag: [t("Lag of a group"), t("messages")],
  replication_lag: [t("Replicas out of sync"), t("seconds")],
  under_replicated: [t("Under-replicated partitions"), t("partitions")],
  dead_letters: [t("Dead letters"), t("messages")],
  no_active_consumer: [t("No active consumer"), t("messages that wait")],
  database_lag: [t("Replica of a database behind"), t("seconds")],
  late_timers: [t("Delayed messages that are late"), t("seconds")],
  disk: [t("Disk used"), "%"],
  unreachable: [t("Cluster does not answer"), ""],
});
const FIRST = {
  lag: [10000, 60000],
  replication_lag: [30, 0],
  under_replicated: [0, 60000],
  dead_letters: [0, 0],
  no_active_consumer: [0, 60000],
  database_lag: [30, 0],
  late_timers: [60, 0],
  disk: [85, 0],
  unreachable: [0, 30000],
};

export async function alerts(page) {
  const panels = { firing, rules, silences, history };
  const tab = Object.hasOwn(panels, page.params.tab) ? page.params.tab : "firing";
  const body = h("div.stack");
  show(
    page.root,
    pageHead({
      title: t("Alerts"),
      note: t("Rules that the console checks after each look at the clusters."),
      actions: [button(t("New rule"), () => ruleDialog(), { kind: "primary", symbol: "plus" })],
    }),
    tabs(
      [
        ["firing", t("Firing"), at`/alerts`],
        ["rules", t("Rules"), at`/alerts/rules`],
        ["silences", t("Silences"), at`/alerts/silences`],
        ["history", t("History"), at`/alerts/history`],
      ],
      tab,
    ),
    body,
  );
  const refresh = () => panels[tab](page, body);
  if (tab === "firing" || tab === "history") page.every(5000, refresh);
  await refresh();
}

const what = (each) => KINDS()[each.kind]?.[0] ?? each.kind;

async function firing(page, body) {
  const found = await get("/alerts", page.signal);
  show(
    body,
    card({
      title: t("Firing"),
      count: count(found.length),
      body: table(
        [
          { key: "rule", title: t("Rule"), cell: (each) => h("b", null, each.rule) },
          { key: "text", title: t("What"), clip: true, cell: (each) => each.text },
          { key: "cluster", title: t("Cluster"), phone: false, cell: (each) => each.cluster },
          { key: "since", title: t("Since"), phone: false, cell: (each) => relative(each.since_ms) },
          {
            key: "act",
            title: "",
            class: "actions-cell",
            cell: (each) => button(t("Silence"), () => silenceDialog(each), { small: true }),
          },
        ],
        found,
        {
          key: (each) => `${each.rule} ${each.cluster} ${each.resource}`,
          empty: () =>
            emptyState({
              symbol: "check",
              title: t("Nothing fires"),
              text: t("Rules watch lag, replicas, dead letters, consumers and disks, and notify a webhook or a mailbox."),
              actions: [h("a.btn", { href: at`/alerts/rules` }, t("See the rules"))],
            }),
        },
      ),
    }),
  );
}

async function rules(page, body) {
  const found = await get("/alerts/rules", page.signal);
  show(
    body,
    card({
      title: t("Rules"),
      count: count(found.length),
      body: table(
        [
          { key: "name", title: t("Rule"), cell: (each) => h("b", null, each.name) },
          {
            key: "kind",
            title: t("Watches"),
            cell: (each) =>
              `${what(each)}${each.kind === "unreachable" ? "" : ` > ${count(each.threshold)} ${KINDS()[each.kind]?.[1] ?? ""}`}`,
          },
          {
            key: "for",
            title: t("For"),
            phone: false,
            cell: (each) => (each.for_ms ? duration(each.for_ms) : t("at once")),
          },
          {
            key: "to",
            title: t("Tells"),
            phone: false,
            clip: true,
            cell: (each) =>
              [each.webhook ? t("webhook") : "", ...each.email].filter(Boolean).join(", ") || t("only this page"),
          },
          {
            key: "on",
            title: t("State"),
            cell: (each) => (each.is_enabled ? status("ok", t("On")) : status("idle", t("Off"))),
          },
          {
            key: "act",
            title: "",
            class: "actions-cell",
            cell: (each) =>
              h(
                "span.row.end",
                null,
                iconButton("send", t("Send a test of {name}", { name: each.name }), () => test(each)),
                iconButton("edit", t("Change {name}", { name: each.name }), () => ruleDialog(each)),
                iconButton("trash", t("Remove {name}", { name: each.name }), () =>
                  confirm({
                    title: t("Remove {name}", { name: each.name }),
                    text: t("The console stops checking it; its history stays."),
                    action: t("Remove"),
                    submit: async () => {
                      await del(`/alerts/rules/${encodeURIComponent(each.id)}`);
                      toast("ok", t("{name} is removed", { name: each.name }));
                      draw();
                    },
                  }),
                ),
              ),
          },
        ],
        found,
        {
          key: (each) => each.id,
          stacked: true,
          empty: () =>
            emptyState({
              symbol: "alerts",
              title: t("No rules yet"),
              text: t("Begin with lag and with partitions that are not replicated."),
              actions: [button(t("New rule"), () => ruleDialog(), { symbol: "plus" })],
            }),
        },
      ),
    }),
  );
}

async function test(each) {
  const failed = await act(() => post(`/alerts/rules/${encodeURIComponent(each.id)}/test`));
  if (failed)
    toast(
      failed.length ? "error" : "ok",
      failed.length ? t("The test did not arrive") : t("A test was sent"),
      failed.join("; "),
    );
}

async function silences(page, body) {
  const found = await get("/alerts/silences", page.signal);
  show(
    body,
    card({
      title: t("Silences"),
      count: count(found.length),
      tools: [button(t("New silence"), () => silenceDialog(), { symbol: "plus" })],
      body: table(
        [
          { key: "until", title: t("Until"), cell: (each) => `${time(each.until_ms)} (${relative(each.until_ms)})` },
          {
            key: "what",
            title: t("Of"),
            cell: (each) =>
              [each.rule ? t("one rule") : "", each.resource ?? ""].filter(Boolean).join(" · ") || t("everything"),
          },
          { key: "comment", title: t("Why"), clip: true, cell: (each) => each.comment },
          {
            key: "act",
            title: "",
            class: "actions-cell",
            cell: (each) =>
              button(
                t("End silence"),
                () =>
                  act(() => del(`/alerts/silences/${encodeURIComponent(each.id)}`), t("Alerts are told again")).then(
                    draw,
                  ),
                { small: true },
              ),
          },
        ],
        found,
        {
          key: (each) => each.id,
          empty: () =>
            emptyState({
              symbol: "pause",
              title: t("Nothing is silenced"),
              text: t("Silence alerts during planned work; they still show here."),
            }),
        },
      ),
    }),
  );
}

async function history(page, body) {
  const found = await get(`/alerts/history${query({ limit: 200 })}`, page.signal);
  show(
    body,
    card({
      title: t("History"),
      body: table(
        [
          { key: "at", title: t("From"), cell: (each) => time(each.at_ms) },
          {
            key: "ended",
            title: t("To"),
            cell: (each) => (each.ended_ms ? time(each.ended_ms) : status("error", t("fires"))),
          },
          { key: "rule", title: t("Rule"), cell: (each) => h("b", null, each.body.rule ?? "") },
          { key: "text", title: t("What"), clip: true, phone: false, cell: (each) => each.body.text ?? "" },
        ],
        found,
        {
          key: (each) => each.id,
          empty: () =>
            emptyState({
              symbol: "audit",
              title: t("Nothing has fired"),
              text: t("Alerts that fire are kept here with their beginning and end."),
            }),
        },
      ),
    }),
  );
}

function ruleDialog(rule) {
  const name = input({ value: rule?.name ?? "", autofocus: true });
  const kind = select(
    Object.entries(KINDS()).map(([key, [text]]) => [key, text]),
    rule?.kind ?? "lag",
  );
  const threshold = input({ type: "number", min: 0, value: String(rule?.threshold ?? FIRST.lag[0]) });
  const unit = h("span");
  const seconds = input({ type: "number", min: 0, value: String((rule?.for_ms ?? FIRST.lag[1]) / 1000) });
  const prefix = input({ value: rule?.prefix ?? "", class: "mono" });
  const webhook = input({ value: rule?.webhook ?? "", class: "mono", placeholder: "https://hooks.example/alerts" });
  const email = textarea({ rows: 2, placeholder: "ops@example.org" }, (rule?.email ?? []).join("\n"));
  const enabled = checkbox(t("On"), rule?.is_enabled ?? true);
  const say = () => show(unit, KINDS()[kind.value][1] || t("not used"));
  kind.addEventListener("change", () => {
    [threshold.value] = FIRST[kind.value];
    seconds.value = FIRST[kind.value][1] / 1000;
    say();
  });
  say();
  form({
    title: rule ? t("Change {name}", { name: rule.name }) : t("New rule"),
    action: rule ? t("Save") : t("Add rule"),
    body: [
      h("div.fields", null, field(t("Name"), name), field(t("Watches"), kind)),
      h(
        "div.fields",
        null,
        field(t("Fires above"), threshold, unit),
        field(t("For (seconds)"), seconds, t("So long before it fires.")),
        field(t("Names that begin with"), prefix, t("Empty: all.")),
      ),
      field(t("Webhook"), webhook, t("Gets JSON by POST when it fires and when it ends.")),
      field(t("E-mail"), email, t("One address a line.")),
      enabled,
    ],
    submit: async () => {
      const wanted = {
        name: name.value.trim(),
        kind: kind.value,
        threshold: Number(threshold.value),
        for_ms: Math.round(Number(seconds.value) * 1000),
        prefix: prefix.value,
        webhook: webhook.value.trim(),
        email: email.value
          .split("\n")
          .map((each) => each.trim())
          .filter(Boolean),
        is_enabled: enabled.box.checked,
        cluster: rule?.cluster ?? state.cluster,
      };
      if (rule) await put(`/alerts/rules/${encodeURIComponent(rule.id)}`, wanted);
      else await post("/alerts/rules", wanted);
      toast(
        "ok",
        rule
          ? t("{name} is changed", { name: wanted.name })
          : t("{name} is checked from now on", { name: wanted.name }),
      );
      draw();
    },
  });
}

async function silenceDialog(alert) {
  const known = (await act(() => get("/alerts/rules"))) ?? [];
  const rule = select(
    [["", t("every rule")], ...known.map((each) => [each.id, each.name])],
    known.find((each) => each.name === alert?.rule)?.id ?? "",
  );
  const hours = input({ type: "number", min: 0.25, step: 0.25, value: "2", autofocus: true });
  const resource = input({ value: alert?.resource ?? "", class: "mono" });
  const comment = input({ placeholder: t("planned work") });
  form({
    title: t("New silence"),
    action: t("Silence"),
    body: [
      h(
        "div.fields",
        null,
        field(t("For (hours)"), hours),
        field(t("Rule"), rule),
        field(t("Of"), resource, t("A topic or group; empty: everything.")),
      ),
      field(t("Why"), comment),
    ],
    submit: async () => {
      await post("/alerts/silences", {
        until_ms: Date.now() + Math.round(Number(hours.value) * 3600000),
        rule: rule.value || null,
        resource: resource.value || null,
        comment: comment.value,
      });
      toast("ok", t("No notifications for {time}", { time: duration(Number(hours.value) * 3600000) }));
      draw();
    },
  });
}
