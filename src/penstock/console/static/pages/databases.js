// Database nodes: where topics in SQL storage are; add, test, promote, drain, remove.
import { get, path, post, put } from "../api.js";
import { banner, button, card, emptyState, field, input, pageHead, status, textarea } from "../components.js";
import { act, confirm, confirmTyped, form, toast } from "../dialogs.js";
import { h, show } from "../dom.js";
import { count, duration } from "../format.js";
import { table } from "../grid.js";
import { draw, state } from "../router.js";
import { plural, t } from "../translations.js";

export async function databases(page) {
  const scope = path`/clusters/${state.cluster}/databases`;
  const list = h("div.stack");
  const add = () => addGroup(scope);
  show(
    page.root,
    pageHead({
      title: t("Database nodes"),
      note: t("Groups of database servers that hold topics in SQL storage."),
      actions: [button(t("Add group"), add, { kind: "primary", symbol: "plus" })],
    }),
    list,
  );
  const refresh = async () => {
    let found;
    try {
      found = await get(scope, page.signal);
    } catch (problem) {
      if (problem.name === "AbortError" || problem.status === 401) throw problem;
      show(
        list,
        card({
          label: t("Database nodes"),
          body: emptyState({
            symbol: "database",
            title: t("This cluster keeps no topics in databases"),
            text: problem.message,
            commands: ["penstock serve --sql mysql://USER:PASSWORD@HOST/DATABASE"],
          }),
        }),
      );
      return;
    }
    show(
      list,
      found.length
        ? found.map((each) => groupCard(scope, each))
        : card({
            label: t("Database nodes"),
            body: emptyState({
              symbol: "database",
              title: t("No database groups"),
              text: t("A group is a primary and its replicas. Topics in SQL storage are spread over groups."),
              actions: [button(t("Add group"), add, { symbol: "plus" })],
            }),
          }),
    );
  };
  page.every(5000, refresh);
  await refresh();
}

function groupCard(scope, each) {
  const address = `${scope}/${encodeURIComponent(each.name)}`;
  const moving = [
    each.leaving ? t("{n} leaving", { n: count(each.leaving) }) : "",
    each.arriving ? t("{n} arriving", { n: count(each.arriving) }) : "",
  ]
    .filter(Boolean)
    .join(" · ");
  return card({
    title: each.name,
    count: [plural(each.partitions, "{n} partition", "{n} partitions"), moving].filter(Boolean).join(" · "),
    tools: [
      each.is_draining ? status("warn", t("Draining")) : null,
      button(
        each.is_draining ? t("Undrain") : t("Drain"),
        () =>
          confirm({
            title: each.is_draining ? t("Undrain {name}", { name: each.name }) : t("Drain {name}", { name: each.name }),
            text: each.is_draining
              ? t("It may hold partitions again.")
              : t("Its partitions move to other groups; clients keep working."),
            action: each.is_draining ? t("Undrain") : t("Drain"),
            danger: !each.is_draining,
            submit: async () => {
              await put(`${address}/draining`, { draining: !each.is_draining });
              toast("ok", t("Done"));
              draw();
            },
          }),
        { small: true },
      ),
      button(
        t("Remove"),
        () =>
          confirmTyped({
            title: t("Remove {name}", { name: each.name }),
            text: t("The cluster forgets this group. What is in its databases stays there."),
            name: each.name,
            action: t("Remove"),
            submit: async (typed) => {
              await post(`${address}/removal`, { confirm: typed });
              toast("ok", t("{name} is removed", { name: each.name }));
              draw();
            },
          }),
        { small: true, kind: "danger" },
      ),
    ],
    body: table(
      [
        { key: "address", title: t("Server"), name: true, cell: (one) => h("code", null, one.address) },
        {
          key: "role",
          title: t("Role"),
          cell: (one) => (one.is_primary ? status("ok", t("primary")) : status("idle", t("replica"))),
        },
        {
          key: "state",
          title: t("State"),
          cell: (one) => (one.problem ? status("error", one.problem) : (one.state ?? "–")),
        },
        { key: "lag", title: t("Behind"), num: true, cell: (one) => (one.is_primary ? "–" : duration(one.lag_ms)) },
        {
          key: "act",
          title: "",
          class: "actions-cell",
          cell: (one) =>
            one.is_primary
              ? null
              : button(
                  t("Promote"),
                  () =>
                    confirm({
                      title: t("Promote {name}", { name: one.address }),
                      text: t("It becomes the primary; writes wait until it has caught up."),
                      action: t("Promote"),
                      submit: async () => {
                        await put(`${address}/primary`, { server: one.address });
                        toast("ok", t("Done"));
                        draw();
                      },
                    }),
                  { small: true },
                ),
        },
      ],
      each.servers,
      { key: (one) => one.address },
    ),
  });
}

function addGroup(scope) {
  const name = input({ class: "mono", autofocus: true, placeholder: "eu-1" });
  const servers = textarea({ rows: 3, placeholder: "mysql://user:password@host/database" });
  const told = h("div");
  const test = button(t("Test"), async () => {
    for (const address of lines()) {
      const result = await act(() => post(`${scope}/test`, { address }));
      if (result)
        show(
          told,
          result.is_done
            ? banner("ok", t("{name} answers", { name: result.item }))
            : banner("error", t("{name} does not answer", { name: result.item }), result.error),
        );
      if (!result?.is_done) return;
    }
  });
  const lines = () =>
    servers.value
      .split("\n")
      .map((each) => each.trim())
      .filter(Boolean);
  form({
    title: t("Add group"),
    action: t("Add group"),
    body: [
      field(t("Name"), name),
      field(
        t("Servers"),
        servers,
        t("One a line, the primary first. Passwords are sent to the brokers and shown nowhere."),
      ),
      h("div", null, test),
      told,
    ],
    submit: async () => {
      await post(scope, { name: name.value, servers: lines() });
      toast("ok", t("Group {name} is added", { name: name.value }));
      draw();
    },
  });
}
