// The audit log: who did what, when, from where, before and after. The console only adds to it.
import { base, get, query } from "../api.js";
import { button, card, emptyState, input, pageHead, pairs, select, status } from "../components.js";
import { drawer } from "../dialogs.js";
import { debounce, h, show } from "../dom.js";
import { relative, time } from "../format.js";
import { filterBox, Grid } from "../grid.js";
import { note } from "../router.js";
import { t } from "../translations.js";

const OUTCOMES = {
  done: ["ok", "Done"],
  partial: ["warn", "Partly done"],
  failed: ["error", "Failed"],
  refused: ["error", "Refused"],
  started: ["idle", "Not finished"],
};
const outcome = (value) => status(OUTCOMES[value]?.[0] ?? "idle", t(OUTCOMES[value]?.[1] ?? value));

export async function audit(page) {
  const chosen = {
    text: page.query.text ?? "",
    user: page.query.user ?? "",
    operation: page.query.operation ?? "",
    outcome: page.query.outcome ?? "",
    resource: page.query.resource ?? "",
  };
  const change = (values) => {
    Object.assign(chosen, values);
    note(chosen);
    grid.reload();
  };
  const grid = new Grid({
    label: t("Audit log"),
    stacked: true,
    key: (each) => each.id,
    load: ({ limit, after }) => get(`/audit${query({ ...chosen, limit, after })}`, page.signal),
    onrow: (each) => open(each),
    empty: () =>
      emptyState({
        symbol: "audit",
        title: t("No entry matches"),
        text: t("Every change, every refusal and every look at messages is recorded here."),
      }),
    columns: [
      {
        key: "at_ms",
        title: t("Time"),
        cell: (each) =>
          h(
            "button.cell-button",
            { type: "button", title: relative(each.at_ms), onclick: () => open(each) },
            time(each.at_ms),
          ),
      },
      { key: "user", title: t("User"), cell: (each) => each.user },
      { key: "operation", title: t("Operation"), name: true, cell: (each) => h("code", null, each.operation) },
      { key: "resource", title: t("On"), clip: true, phone: false, cell: (each) => each.resource },
      { key: "outcome", title: t("Outcome"), class: "tail", cell: (each) => outcome(each.outcome) },
      {
        key: "address",
        title: t("From"),
        phone: false,
        cell: (each) => h("span.muted", null, `${each.address} · ${each.via}`),
      },
    ],
  });
  const user = input({
    value: chosen.user,
    placeholder: t("User"),
    "aria-label": t("User"),
    class: "auto",
    style: { width: "120px" },
  });
  user.addEventListener(
    "input",
    debounce(() => change({ user: user.value.trim() })),
  );
  const ended = select(
    [["", t("Every outcome")], ...Object.entries(OUTCOMES).map(([key, [, text]]) => [key, t(text)])],
    chosen.outcome,
    { "aria-label": t("Outcome"), class: "auto" },
  );
  ended.addEventListener("change", () => change({ outcome: ended.value }));
  const kind = select(
    [
      ["", t("Every operation")],
      ...[
        "topics.",
        "messages.",
        "groups.",
        "timers.",
        "dead_letters.",
        "brokers.",
        "databases.",
        "users.",
        "session.",
      ].map((each) => [each, each.replace(".", "")]),
    ],
    chosen.operation,
    { "aria-label": t("Operation"), class: "auto" },
  );
  kind.addEventListener("change", () => change({ operation: kind.value }));
  show(
    page.root,
    pageHead({
      title: t("Audit log"),
      note: t("The console only adds to it; no role can change it. Times are UTC."),
      actions: [h("a.btn", { href: `${base}/api/audit/export${query(chosen)}`, download: "audit.jsonl" }, t("Export"))],
    }),
    card({
      label: t("Audit log"),
      tools: [kind, ended, user, filterBox(t("Search the log"), (text) => change({ text }), chosen.text)],
      body: grid.element,
    }),
  );
  await grid.reload();
}

function open(each) {
  drawer({
    title: each.operation,
    body: [
      pairs([
        [t("Time"), `${time(each.at_ms)} (${relative(each.at_ms)})`],
        [t("User"), each.user],
        [t("From"), `${each.address} · ${each.via}`],
        [t("Cluster"), each.cluster || "–"],
        [t("On"), each.resource || "–"],
        [t("Outcome"), outcome(each.outcome)],
        each.problem ? [t("Problem"), each.problem] : null,
      ]),
      ...[
        ["Asked for", each.params],
        ["Before", each.before],
        ["After", each.after],
      ]
        .filter(([, text]) => text)
        .map(([title, text]) =>
          h("section", null, h("div.section-title", null, t(title)), h("pre.payload", { tabindex: "0" }, pretty(text))),
        ),
    ],
  });
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

export { button };
