// Users of the cluster: who logs in to its brokers with a password (SCRAM). Users of the console are in users.js.
import { get, path, post, put, query, rows } from "../api.js";
import { button, card, checkbox, emptyState, field, iconButton, input, pageHead } from "../components.js";
import { confirmTyped, form, toast } from "../dialogs.js";
import { h } from "../dom.js";
import { count } from "../format.js";
import { filterBox, Grid } from "../grid.js";
import { at, bootstrap, note, state, withQuery } from "../router.js";
import { plural, t } from "../translations.js";

const MECHANISMS = ["SCRAM-SHA-512", "SCRAM-SHA-256"];
const GENERATED = 24;

export async function clusterUsers(page) {
  const scope = path`/clusters/${state.cluster}/users`;
  let text = page.query.text ?? "";
  const add = () => passwordDialog(scope, () => grid.reload());
  const grid = new Grid({
    label: t("Cluster users"),
    columns: [
      { key: "name", title: t("User"), sort: true, name: true, cell: (each) => h("span.mono", null, each.name) },
      {
        key: "mechanisms",
        title: t("Logs in with"),
        phone: false,
        cell: (each) => Object.keys(each.mechanisms).map((name) => h("span.tag.mono", null, name)),
      },
      {
        key: "iterations",
        title: t("Iterations"),
        num: true,
        phone: false,
        cell: (each) => count(Math.min(...Object.values(each.mechanisms))),
      },
      {
        key: "permissions",
        title: t("Permissions"),
        phone: false,
        cell: (each) =>
          h("a.mono", { href: withQuery(at`/acls`, { principal: `User:${each.name}` }) }, `User:${each.name}`),
      },
      {
        key: "act",
        title: "",
        class: "actions-cell",
        cell: (each) =>
          h(
            "span.row.end",
            null,
            iconButton("key", t("Change the password of {name}", { name: each.name }), () =>
              passwordDialog(scope, () => grid.reload(), each),
            ),
            iconButton("trash", t("Remove {name}", { name: each.name }), () => removal(scope, each, grid)),
          ),
      },
    ],
    load: (wanted) => get(`${scope}${rows(wanted, text)}`, page.signal),
    empty: () =>
      text
        ? emptyState({ symbol: "search", title: t("No user matches") })
        : emptyState({
            symbol: "key",
            title: t("No users yet"),
            text: t(
              "A user logs in on listeners with SASL. Brokers keep salted hashes of passwords, never the passwords.",
            ),
            actions: [button(t("Add user"), add, { symbol: "plus" })],
            commands: [`penstock user add alice -b ${bootstrap()}`],
          }),
  });
  page.root.append(
    pageHead({
      title: t("Cluster users"),
      note: t(
        "Users that log in to the brokers with a password. The console's own users are under Users and roles.",
      ),
      actions: [button(t("Add user"), add, { kind: "primary", symbol: "plus" })],
    }),
    card({
      title: t("Users"),
      tools: [
        filterBox(
          t("Filter users"),
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
  );
  await grid.reload();
}

/** Adds a user, or gives a known one another password. */
function passwordDialog(scope, ondone, user) {
  const name = input({ value: user?.name ?? "", disabled: Boolean(user), autofocus: !user, class: "mono" });
  const password = input({ type: "password", autocomplete: "new-password", autofocus: Boolean(user), class: "mono" });
  const chosen = MECHANISMS.map((each) => checkbox(each, true));
  const held = field(t("Password"), password, t("Brokers store a salted hash. The password cannot be read back."));
  const generate = button(
    t("Generate a password"),
    () => {
      password.value = generated();
      password.type = "text";
      password.select();
      held.querySelector(".help").textContent = t("Copy it now: it is not shown again.");
    },
    { small: true },
  );
  form({
    title: user ? t("Change the password of {name}", { name: user.name }) : t("Add user"),
    action: user ? t("Change password") : t("Add user"),
    body: [
      user ? null : field(t("Name"), name, t("The principal of its permissions is User: and this name.")),
      held,
      h("div", null, generate),
      user
        ? h("p.muted", null, t("Existing connections stay until they have to log in again."))
        : h("div.field", null, h("span.label", null, t("Logs in with")), chosen),
    ],
    submit: async () => {
      if (user) {
        await put(`${scope}/password`, { name: user.name, password: password.value });
        toast("ok", t("The password of {name} is changed", { name: user.name }));
      } else {
        await post(scope, {
          name: name.value,
          password: password.value,
          mechanisms: MECHANISMS.filter((_, index) => chosen[index].box.checked),
        });
        toast("ok", t("{name} may log in", { name: name.value }));
      }
      await ondone();
    },
  });
}

/** Letters and digits without those that look alike, from the browser's own randomness, without bias. */
function generated() {
  const letters = "abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789";
  const limit = 256 - (256 % letters.length);
  let text = "";
  while (text.length < GENERATED)
    for (const byte of crypto.getRandomValues(new Uint8Array(64)))
      if (byte < limit && text.length < GENERATED) text += letters[byte % letters.length];
  return text;
}

async function removal(scope, user, grid) {
  const cluster = path`/clusters/${state.cluster}`;
  const [acls, quotas] = await Promise.all([
    get(`${cluster}/acls${query({ principal: `User:${user.name}`, limit: 1 })}`).catch(() => null),
    get(`${cluster}/quotas${query({ limit: 1000 })}`).catch(() => null),
  ]);
  const limits = quotas?.items.filter((each) => each.entity.user === user.name).length ?? 0;
  confirmTyped({
    title: t("Remove {name}", { name: user.name }),
    text: t("It can no longer log in. Existing connections stay until they have to log in again."),
    consequences: [
      acls?.total
        ? plural(
            acls.total,
            "{n} permission stays: a new user of this name would have it",
            "{n} permissions stay: a new user of this name would have them",
          )
        : null,
      limits ? plural(limits, "{n} quota stays", "{n} quotas stay") : null,
    ].filter(Boolean),
    name: user.name,
    action: t("Remove"),
    submit: async (confirm) => {
      await post(`${scope}/removal`, { name: user.name, confirm });
      toast("ok", t("{name} is removed", { name: user.name }));
      await grid.reload();
    },
  });
}
