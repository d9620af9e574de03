// Users of the console, their roles and grants, and what roles see of messages; the reader's own account.
import { del, get, patch, post, put } from "../api.js";
import {
  banner,
  button,
  card,
  checkbox,
  command,
  emptyState,
  field,
  iconButton,
  input,
  pageHead,
  radioOptions,
  select,
  status,
} from "../components.js";
import { act, confirm, confirmTyped, dialog, form, toast } from "../dialogs.js";
import { h, show } from "../dom.js";
import { relative, time } from "../format.js";
import { table } from "../grid.js";
import { draw, state } from "../router.js";
import { t } from "../translations.js";

const ROLES = () => [
  ["viewer", t("Viewer"), t("Sees everything, changes nothing.")],
  ["operator", t("Operator"), t("Also resets, pauses, produces, resends, cancels.")],
  ["admin", t("Admin"), t("Also creates, configures, deletes, and manages users.")],
  ["none", t("None"), t("Only what grants show.")],
];

export async function users(page) {
  const list = h("div");
  const held = h("div");
  const masking = h("div");
  show(
    page.root,
    pageHead({
      title: t("Users and roles"),
      note: t("Who may sign in, and what each may do."),
      actions: [button(t("New user"), () => userDialog(refresh), { kind: "primary", symbol: "plus" })],
    }),
    list,
    held,
    masking,
  );
  const refresh = async () => {
    const [found, tokens, rules] = await Promise.all([
      get("/users", page.signal),
      get("/tokens", page.signal),
      get("/masking-rules", page.signal).catch(() => []),
    ]);
    show(
      list,
      card({
        title: t("Users"),
        count: found.length,
        body: table(
          [
            { key: "name", title: t("User"), cell: (each) => h("b", null, each.name) },
            {
              key: "role",
              title: t("Role"),
              cell: (each) =>
                status(
                  each.is_disabled ? "idle" : each.role === "admin" ? "warn" : "ok",
                  each.is_disabled ? t("Disabled") : t(each.role),
                ),
            },
            {
              key: "grants",
              title: t("Grants"),
              phone: false,
              cell: (each) =>
                each.grants.length
                  ? each.grants.map((grant) =>
                      h("span.tag.mono", null, `${grant.kind} ${grant.prefix}* → ${grant.role}`),
                    )
                  : h("span.muted", null, t("none")),
            },
            {
              key: "issuer",
              title: t("Signs in"),
              phone: false,
              cell: (each) =>
                each.issuer
                  ? h("span.tag", { title: each.issuer }, t("through the provider"))
                  : each.has_password
                    ? t("with a password")
                    : h("span.muted", null, t("without a password")),
            },
            {
              key: "created",
              title: t("Since"),
              phone: false,
              cell: (each) => (each.created_ms ? time(each.created_ms, { seconds: false }) : "–"),
            },
            {
              key: "act",
              title: "",
              class: "actions-cell",
              cell: (each) =>
                h(
                  "span.row.end",
                  null,
                  iconButton("edit", t("Change {name}", { name: each.name }), () => userDialog(refresh, each)),
                  each.issuer
                    ? noButton()
                    : iconButton("key", t("Set the password of {name}", { name: each.name }), () =>
                        passwordDialog(refresh, each),
                      ),
                  each.name === state.user.name
                    ? noButton()
                    : iconButton("trash", t("Remove {name}", { name: each.name }), () =>
                        confirmTyped({
                          title: t("Remove {name}", { name: each.name }),
                          text: t("The user's sessions and tokens end at once."),
                          name: each.name,
                          action: t("Remove"),
                          submit: async () => {
                            await del(`/users/${encodeURIComponent(each.name)}`);
                            toast("ok", t("{name} is removed", { name: each.name }));
                            await refresh();
                          },
                        }),
                      ),
                ),
            },
          ],
          found,
        ),
      }),
    );
    show(held, tokensCard(tokens, refresh));
    show(
      masking,
      card({
        title: t("What roles see of messages"),
        count: rules.length,
        tools: [button(t("New rule"), () => ruleDialog(refresh), { symbol: "plus" })],
        body: table(
          [
            {
              key: "part",
              title: t("Hidden"),
              cell: (each) => [t(PARTS()[each.part]), " ", each.path ? h("code", null, each.path) : null],
            },
            {
              key: "topic",
              title: t("Topics that begin with"),
              cell: (each) => h("code", null, each.topic_prefix || "*"),
            },
            { key: "role", title: t("Seen from role"), cell: (each) => t(each.visible_from) },
            {
              key: "act",
              title: "",
              class: "actions-cell",
              cell: (each) =>
                iconButton("trash", t("Remove rule"), () =>
                  act(() => del(`/masking-rules/${encodeURIComponent(each.id)}`), t("The rule is removed")).then(
                    refresh,
                  ),
                ),
            },
          ],
          rules,
          {
            key: (each) => each.id,
            empty: () =>
              emptyState({
                symbol: "shield",
                title: t("Every role sees whole messages"),
                text: t("A rule masks fields of JSON, keys or headers for a role, or hides messages altogether."),
              }),
          },
        ),
      }),
    );
  };
  await refresh();
}

function passwordDialog(ondone, user) {
  const password = input({ type: "password", autocomplete: "new-password", autofocus: true });
  form({
    title: t("Set the password of {name}", { name: user.name }),
    action: t("Set password"),
    body: [
      field(t("New password"), password, t("At least 12 characters.")),
      h("p.muted", null, t("The user's sessions end. Tokens stay.")),
    ],
    submit: async () => {
      await put(`/users/${encodeURIComponent(user.name)}/password`, { password: password.value });
      toast("ok", t("The password of {name} is changed", { name: user.name }));
      await ondone();
    },
  });
}

/** Keeps the place of a button that a row does not have. */
const noButton = () => h("span.btn.small.icon-only", { "aria-hidden": "true", style: { visibility: "hidden" } });

/** The column of a table of tokens that removes one. */
function tokenRemoval(address, ondone) {
  return {
    key: "act",
    title: "",
    class: "actions-cell",
    cell: (each) =>
      iconButton("trash", t("Remove {name}", { name: each.label }), () =>
        confirm({
          title: t("Remove token {name}", { name: each.label }),
          text: t("Scripts that use it are refused at once."),
          action: t("Remove"),
          submit: async () => {
            await del(`${address}/${encodeURIComponent(each.id)}`);
            toast("ok", t("The token is removed"));
            await ondone();
          },
        }),
      ),
  };
}

function tokensCard(tokens, refresh) {
  return card({
    title: t("Tokens for scripts"),
    count: tokens.length,
    body: table(
      [
        { key: "label", title: t("Label"), cell: (each) => each.label },
        { key: "user", title: t("User"), cell: (each) => each.user },
        { key: "role", title: t("Role"), cell: (each) => t(each.role) },
        {
          key: "used",
          title: t("Last seen"),
          phone: false,
          cell: (each) => (each.used_ms ? relative(each.used_ms) : t("never")),
        },
        tokenRemoval("/tokens", refresh),
      ],
      tokens,
      {
        key: (each) => each.id,
        empty: () =>
          emptyState({
            symbol: "link",
            title: t("No tokens"),
            text: t("Users make tokens for scripts under My account."),
          }),
      },
    ),
  });
}

function userDialog(ondone, user) {
  let role = user?.role ?? "viewer";
  const name = input({ value: user?.name ?? "", autofocus: !user, disabled: Boolean(user) });
  const password = input({ type: "password", autocomplete: "new-password" });
  const disabled = checkbox(t("Disabled: cannot sign in"), user?.is_disabled ?? false);
  const grants = h("div.stack.tight");
  const add = (grant = { kind: "topic", prefix: "", role: "operator" }) => {
    const line = h(
      "div.row",
      null,
      select(
        [
          ["topic", t("topics")],
          ["group", t("groups")],
        ],
        grant.kind,
        { "aria-label": t("Kind"), class: "auto" },
      ),
      input({ value: grant.prefix, placeholder: t("prefix"), "aria-label": t("Prefix"), class: "mono" }),
      select(
        ROLES()
          .slice(0, 3)
          .map(([key, text]) => [key, text]),
        grant.role,
        { "aria-label": t("Role"), class: "auto" },
      ),
      iconButton("close", t("Remove grant"), () => line.remove()),
    );
    grants.append(line);
  };
  user?.grants.forEach(add);
  form({
    title: user ? t("Change {name}", { name: user.name }) : t("New user"),
    action: user ? t("Save") : t("Create user"),
    body: [
      user
        ? null
        : h("div.fields", null, field(t("Name"), name), field(t("Password"), password, t("At least 12 characters."))),
      h(
        "div.field",
        null,
        h("span.label", null, t("Role everywhere")),
        radioOptions(ROLES(), role, (key) => {
          role = key;
        }),
      ),
      h(
        "div.field",
        null,
        h("span.label", null, t("Grants on prefixes")),
        grants,
        button(t("Add grant"), () => add(), { small: true, symbol: "plus" }),
      ),
      user ? disabled : null,
    ],
    submit: async () => {
      const wanted = [...grants.children].map((line) => {
        const [kind, prefix, held] = line.querySelectorAll("select,input");
        return { kind: kind.value, prefix: prefix.value, role: held.value, cluster: null };
      });
      if (user)
        await patch(`/users/${encodeURIComponent(user.name)}`, {
          role,
          grants: wanted,
          is_disabled: disabled.box.checked,
        });
      else await post("/users", { name: name.value, role, grants: wanted, password: password.value || null });
      toast("ok", user ? t("{name} is changed", { name: user.name }) : t("{name} may come in", { name: name.value }));
      await ondone();
    },
  });
}

const PARTS = () => ({ json: t("JSON path"), header: t("Header"), key: t("Key"), messages: t("Messages altogether") });

function ruleDialog(ondone) {
  const part = select(Object.entries(PARTS()), "json");
  const prefix = input({ class: "mono" });
  const path = input({ class: "mono", placeholder: "$.card.number" });
  const from = select(
    ROLES()
      .slice(1, 3)
      .map(([key, text]) => [key, text]),
    "admin",
  );
  form({
    title: t("New rule"),
    action: t("Add rule"),
    body: [
      h(
        "div.fields",
        null,
        field(t("Hide"), part),
        field(t("Field"), path, t("A JSON path, or the name of a header.")),
      ),
      h(
        "div.fields",
        null,
        field(t("Topics that begin with"), prefix, t("Empty: all topics.")),
        field(t("Lowest role that sees it"), from),
      ),
    ],
    submit: async () => {
      await post("/masking-rules", {
        part: part.value,
        topic_prefix: prefix.value,
        path: ["json", "header"].includes(part.value) ? path.value : "",
        visible_from: from.value,
      });
      toast("ok", t("The rule is added"));
      await ondone();
    },
  });
}

/** The reader's own account: password, sessions, tokens. */
export async function account(page) {
  const [told, sessions, tokens] = await Promise.all([
    get("/account", page.signal),
    get("/account/sessions", page.signal),
    get("/account/tokens", page.signal),
  ]);
  const old = input({ type: "password", autocomplete: "current-password" });
  const fresh = input({ type: "password", autocomplete: "new-password" });
  show(
    page.root,
    pageHead({ title: t("My account"), note: t("{name}, {role}", { name: told.name, role: t(told.role) }) }),
    told.has_password || told.issuer
      ? null
      : banner(
          "warn",
          t("You have no password yet"),
          t("Set one now: the address in the terminal signs in only once."),
        ),
    h(
      "div.columns",
      null,
      h(
        "div.col-4",
        null,
        told.issuer
          ? throughProvider(told.issuer)
          : card({
              title: t("Password"),
              body: h(
                "form.card-body.stack",
                {
                  onsubmit: async (event) => {
                    event.preventDefault();
                    await act(
                      () => put("/account/password", { old: told.has_password ? old.value : null, new: fresh.value }),
                      t("The password is set; other sessions have ended"),
                    );
                    draw();
                  },
                },
                told.has_password ? field(t("Old password"), old) : null,
                field(t("New password"), fresh, t("At least 12 characters.")),
                h("button.btn.primary", { type: "submit" }, t("Set password")),
              ),
            }),
      ),
      h(
        "div.col-8.stack",
        null,
        card({
          title: t("Tokens for scripts"),
          count: tokens.length,
          tools: [button(t("New token"), newToken, { symbol: "plus" })],
          body: table(
            [
              { key: "label", title: t("Label"), cell: (each) => each.label },
              { key: "role", title: t("Role"), cell: (each) => t(each.role) },
              {
                key: "expires",
                title: t("Until"),
                cell: (each) => (each.expires_ms ? time(each.expires_ms) : t("no end")),
              },
              tokenRemoval("/account/tokens", draw),
            ],
            tokens,
            {
              key: (each) => each.id,
              empty: () =>
                emptyState({
                  symbol: "link",
                  title: t("No tokens"),
                  text: t("Everything that these pages do, a script can do with a token."),
                  commands: [`curl -H "Authorization: Bearer TOKEN" ${location.origin}/api/clusters`],
                }),
            },
          ),
        }),
        card({
          title: t("Sessions"),
          count: sessions.length,
          body: table(
            [
              { key: "agent", title: t("Browser"), clip: true, cell: (each) => each.agent || "–" },
              { key: "address", title: t("Address"), cell: (each) => each.address },
              {
                key: "seen",
                title: t("Last seen"),
                phone: false,
                cell: (each) => relative(each.seen_ms ?? each.created_ms),
              },
              {
                key: "act",
                title: "",
                class: "actions-cell",
                cell: (each) =>
                  button(
                    t("End session"),
                    () =>
                      act(
                        () => del(`/account/sessions/${encodeURIComponent(each.id)}`),
                        t("The session has ended"),
                      ).then(draw),
                    { small: true },
                  ),
              },
            ],
            sessions,
            { key: (each) => each.id },
          ),
        }),
      ),
    ),
  );
}

function throughProvider(issuer) {
  return card({
    title: t("Signing in"),
    body: h(
      "div.card-body.stack",
      null,
      h("p.break", null, t("You sign in through {issuer}, which says your role each time.", { issuer })),
    ),
  });
}

function newToken() {
  const label = input({ autofocus: true, placeholder: "ci" });
  const role = select(
    ROLES()
      .slice(0, 3)
      .map(([key, text]) => [key, text]),
    "viewer",
  );
  form({
    title: t("New token"),
    action: t("Create token"),
    body: h("div.fields", null, field(t("Label"), label), field(t("Role"), role, t("Never more than yours."))),
    submit: async () => {
      const made = await post("/account/tokens", { label: label.value, role: role.value });
      draw().then(() =>
        dialog({
          title: t("Copy the token now"),
          body: [h("p", null, t("It is not shown again.")), command(made.text)],
        }),
      );
    },
  });
}
