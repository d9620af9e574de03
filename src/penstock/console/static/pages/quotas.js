// Quotas: what users, client ids and addresses use of each broker at most.
import { get, path, post, put, rows } from "../api.js";
import { button, card, checkbox, emptyState, field, iconButton, input, pageHead, select } from "../components.js";
import { confirm, form, toast } from "../dialogs.js";
import { h, show } from "../dom.js";
import { bytes, count } from "../format.js";
import { filterBox, Grid } from "../grid.js";
import { bootstrap, note, state } from "../router.js";
import { t } from "../translations.js";

const LIMITS = () => [
  ["producer_byte_rate", t("Produce"), t("Bytes of messages in a second, such as 10 MB."), (n) => `${bytes(n)}/s`],
  ["consumer_byte_rate", t("Consume"), t("Bytes of messages in a second, such as 10 MB."), (n) => `${bytes(n)}/s`],
  [
    "request_percentage",
    t("Broker's time"),
    t("Percent of the broker's event loop; 100 is all of it."),
    (n) => `${n} %`,
  ],
  [
    "controller_mutation_rate",
    t("Partition changes"),
    t("Partitions created and deleted in a second."),
    (n) => `${n}/s`,
  ],
  ["connection_creation_rate", t("New connections"), t("In a second, of an address."), (n) => `${count(n)}/s`],
];
const KINDS = () => [
  ["user", t("A user")],
  ["client-id", t("A client id")],
  ["user,client-id", t("A user with a client id")],
  ["ip", t("An address")],
];
const NOUNS = () => ({ user: t("user"), "client-id": t("client id"), ip: t("address") });
const UNITS = { "": 1, k: 1e3, m: 1e6, g: 1e9, t: 1e12 };
const isByteRate = (key) => key.endsWith("byte_rate");

export async function quotas(page) {
  const scope = path`/clusters/${state.cluster}/quotas`;
  let text = page.query.text ?? "";
  const add = () => quotaDialog(scope, () => grid.reload());
  const grid = new Grid({
    label: t("Quotas"),
    columns: [
      {
        key: "name",
        title: t("Of whom"),
        sort: true,
        name: true,
        cell: (each) => [whom(each.entity), onPhone(each.limits)],
      },
      ...LIMITS().map(([key, title, , reading]) => ({
        key,
        title,
        num: true,
        phone: false,
        cell: (each) => (each.limits[key] === undefined ? h("span.muted", null, "–") : reading(each.limits[key])),
      })),
      {
        key: "act",
        title: "",
        class: "actions-cell",
        cell: (each) =>
          h(
            "span.row.end",
            null,
            iconButton("edit", t("Change {name}", { name: each.name }), () =>
              quotaDialog(scope, () => grid.reload(), each),
            ),
            iconButton("trash", t("Remove {name}", { name: each.name }), () =>
              confirm({
                title: t("Remove quota"),
                text: t("{name} is no longer limited, unless by another quota. Throttled clients continue.", {
                  name: each.name,
                }),
                action: t("Remove"),
                submit: async () => {
                  await post(`${scope}/removal`, { entity: each.entity });
                  toast("ok", t("The quota is removed"));
                  await grid.reload();
                },
              }),
            ),
          ),
      },
    ],
    load: (wanted) => get(`${scope}${rows(wanted, text)}`, page.signal),
    empty: () =>
      text
        ? emptyState({ symbol: "search", title: t("No quota matches") })
        : emptyState({
            symbol: "gauge",
            title: t("No quotas yet"),
            text: t("A quota keeps one client from taking what others need. Each broker counts for itself."),
            actions: [button(t("Set quota"), add, { symbol: "plus" })],
            commands: [`penstock quota set --client-id importer producer_byte_rate=1048576 -b ${bootstrap()}`],
          }),
  });
  page.root.append(
    pageHead({
      title: t("Quotas"),
      note: t("What users, client ids and addresses may use of each broker."),
      actions: [button(t("Set quota"), add, { kind: "primary", symbol: "plus" })],
    }),
    card({
      title: t("Quotas"),
      tools: [
        filterBox(
          t("Filter quotas"),
          (typed) => {
            text = typed;
            note({ text });
            grid.reload();
          },
          text,
        ),
      ],
      body: grid.element,
    }),
    h(
      "p.muted",
      null,
      t(
        "The most specific quota holds: of a user with a client id, then of the user, then of the client id; a default counts for each that has none of its own.",
      ),
    ),
  );
  await grid.reload();
}

function whom(entity) {
  return Object.entries(entity).map(([type, name]) =>
    h(
      "span.whom",
      null,
      h("span.muted", null, NOUNS()[type] ?? type),
      " ",
      name === null ? h("span.tag", null, t("default")) : h("span.mono", null, name),
    ),
  );
}

/** The limits in words, where there is no room for their columns. */
function onPhone(limits) {
  return LIMITS()
    .filter(([key]) => limits[key] !== undefined)
    .map(([key, title, , reading]) => h("small.only-phone.muted", null, `${title}: ${reading(limits[key])}`));
}

function quotaDialog(scope, ondone, quota) {
  const parts = h("div.stack");
  const limits = h("div.stack");
  let named = {};
  let amounts = {};
  const kind = select(KINDS(), "user", { onchange: () => draw() });
  const draw = () => {
    const types = quota ? Object.keys(quota.entity) : kind.value.split(",");
    named = {};
    amounts = {};
    if (!quota) show(parts, types.map(nameOf));
    show(
      limits,
      LIMITS()
        .filter(([key]) => (key === "connection_creation_rate") === types.includes("ip"))
        .map(([key, title, help]) => {
          amounts[key] = input({ value: quota?.limits[key] ?? "", inputmode: "decimal", class: "mono" });
          return field(title, amounts[key], help);
        }),
    );
  };
  const nameOf = (type) => {
    const name = input({ class: "mono", placeholder: type === "ip" ? "10.0.0.1" : "" });
    const every = checkbox(t("All without a quota of their own (default)"), false, (isOn) => {
      name.disabled = isOn;
    });
    named[type] = () => (every.box.checked ? null : name.value);
    return h("div.field", null, field(NOUNS()[type], name), every);
  };
  draw();
  form({
    title: quota ? t("Change {name}", { name: quota.name }) : t("Set quota"),
    action: quota ? t("Save") : t("Set quota"),
    note: t("An empty field sets no limit. Each broker counts for itself."),
    body: [quota ? null : field(t("Of whom"), kind), parts, limits],
    submit: async () => {
      const wanted = {};
      const gone = [];
      for (const [key, control] of Object.entries(amounts)) {
        const typed = control.value.trim();
        const amount = parsed(typed, isByteRate(key));
        if (Number.isNaN(amount)) {
          control.closest(".field").complain(t("Write a number above 0, such as 500 or 10 MB."));
          control.focus();
          return false;
        }
        if (amount !== null) wanted[key] = amount;
        else if (quota?.limits[key] !== undefined) gone.push(key);
      }
      const entity = quota?.entity ?? Object.fromEntries(Object.entries(named).map(([type, read]) => [type, read()]));
      if (Object.keys(wanted).length || !gone.length) await put(scope, { entity, limits: wanted });
      if (gone.length) await post(`${scope}/removal`, { entity, keys: gone });
      toast("ok", t("The quota holds on all brokers from now on"));
      await ondone();
      return true;
    },
  });
}

/** The number that was typed, null for nothing, NaN for what is none. */
function parsed(text, isBytes) {
  if (!text) return null;
  const found = /^(\d+(?:\.\d+)?)\s*([kmgt]?)(b?)(?:\/s)?$/i.exec(text);
  if (!found || (!isBytes && (found[2] || found[3]))) return Number.NaN;
  const amount = Number(found[1]) * UNITS[found[2].toLowerCase()];
  return amount > 0 ? (isBytes ? Math.round(amount) : amount) : Number.NaN;
}
