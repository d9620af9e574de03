// Permissions of the cluster (ACLs): the list, and what decides beside it.
import { get, path, rows } from "../api.js";
import { banner, button, card, emptyState, iconButton, input, pageHead, select, tabs } from "../components.js";
import { debounce, h, show } from "../dom.js";
import { filterBox, Grid } from "../grid.js";
import { icon } from "../icons.js";
import { at, bootstrap, note, state } from "../router.js";
import { t } from "../translations.js";
import { keyOf, operation, permission, principalLink, resource, spoken } from "./acl_cells.js";
import { check } from "./acl_check.js";
import { addDialog, removeDialog } from "./acl_dialogs.js";
import { kinds } from "./acl_meanings.js";

const TABS = () => [
  ["list", t("Permissions"), at`/acls`],
  ["check", t("Who may do what?"), at`/acls/check`],
];

export async function acls(page) {
  const scope = path`/clusters/${state.cluster}/acls`;
  const isCheck = page.params.tab === "check";
  const main = h("div.stack");
  const told = await get(`${scope}/authorizer`, page.signal);
  const list = told.is_on && !isCheck ? permissions(page, scope) : null;
  show(
    page.root,
    pageHead({
      title: t("Permissions"),
      note: t("Access control lists (ACLs): who may do what with the brokers of this cluster."),
      actions: told.is_on
        ? [
            button(t("Add permission"), () => addDialog(scope, () => list?.reload()), {
              kind: "primary",
              symbol: "plus",
            }),
          ]
        : [],
    }),
    told.is_on ? tabs(TABS(), isCheck ? "check" : "list") : null,
    main,
  );
  if (!told.is_on) return show(main, withoutAuthorizer());
  show(main, besideAcls(told), isCheck ? check(page, scope) : list.element);
  return list?.reload();
}

function withoutAuthorizer() {
  return card({
    label: t("Permissions"),
    body: emptyState({
      symbol: "shield",
      title: t("This cluster has no authorizer"),
      text: t(
        "Everyone who can connect may do everything. Restart the brokers one after the other with the first line, give permissions, and then with the second.",
      ),
      commands: [
        "penstock serve --set security.authorizer=acls --set security.allow_everyone_if_no_acl_found=true",
        "penstock serve --set security.authorizer=acls",
      ],
    }),
  });
}

/** Super users, and what holds where no ACL is. */
function besideAcls(told) {
  const parts = [];
  if (!told.is_known)
    parts.push(
      banner(
        "warn",
        t("The console may not read the settings of brokers"),
        t("It is not known who the super users are and whether ACLs are enforced: the console needs DESCRIBE_CONFIGS on the cluster."),
      ),
    );
  if (told.allows_without_acl)
    parts.push(
      banner(
        "warn",
        t("Resources without ACLs are open to everyone"),
        t("security.allow_everyone_if_no_acl_found = true: the first ACL of a resource closes it to all others."),
      ),
    );
  if (told.super_users.length)
    parts.push(
      h(
        "p.muted",
        null,
        t("Super users may do everything, whatever is listed here:"),
        " ",
        told.super_users.map((each) => h("code.tag", null, each)),
      ),
    );
  return parts;
}

function permissions(page, scope) {
  const filter = {
    principal: page.query.principal ?? "",
    resource_type: page.query.type ?? "",
    resource_name: page.query.name ?? "",
    text: page.query.text ?? "",
  };
  const remove = button(t("Remove"), () => removeDialog(scope, chosen(), () => grid.reload()), {
    kind: "danger",
    symbol: "trash",
    disabled: true,
  });
  const grid = new Grid({
    label: t("Permissions"),
    page: 500,
    selectable: true,
    key: keyOf,
    columns: [
      {
        key: "principal",
        title: t("Principal"),
        sort: true,
        name: true,
        cell: (each) => [principalLink(each), h("span.only-phone", null, permission(each), " ", operation(each))],
      },
      { key: "permission", title: t("Permission"), phone: false, sort: true, cell: permission },
      { key: "operation", title: t("Operation"), phone: false, sort: true, cell: operation },
      { key: "resource_name", title: t("Resource"), sort: true, cell: resource },
      {
        key: "host",
        title: t("From"),
        phone: false,
        sort: true,
        cell: (each) => (each.host === "*" ? h("span.muted", null, t("any address")) : h("code", null, each.host)),
      },
      {
        key: "act",
        title: "",
        phone: false,
        class: "actions-cell",
        cell: (each) =>
          iconButton("trash", t("Remove {name}", { name: spoken(each) }), () =>
            removeDialog(scope, [each], () => grid.reload()),
          ),
      },
    ],
    onselect: (selected) => {
      remove.disabled = selected.size === 0;
      show(remove, icon("trash"), selected.size ? t("Remove {n}", { n: selected.size }) : t("Remove"));
    },
    load: (wanted) => {
      const { text, ...more } = filter;
      return get(`${scope}${rows(wanted, text, more)}`, page.signal);
    },
    empty: () =>
      Object.values(filter).some(Boolean)
        ? emptyState({
            symbol: "search",
            title: t("No permission matches"),
            text: t("What no permission allows is denied to all but super users."),
          })
        : emptyState({
            symbol: "shield",
            title: t("No permissions yet"),
            text: t("Only super users may do anything. A consumer needs READ on its topic and on its group."),
            actions: [button(t("Add permission"), () => addDialog(scope, () => grid.reload()), { symbol: "plus" })],
            commands: [`penstock acl add alice READ --topic orders -b ${bootstrap()}`],
          }),
  });
  const chosen = () => grid.rows.filter((each) => grid.selected.has(keyOf(each)));
  const changed = () => {
    note({
      principal: filter.principal,
      type: filter.resource_type,
      name: filter.resource_name,
      text: filter.text,
    });
    grid.clearSelection();
    grid.reload();
  };
  const typed = (name) =>
    debounce((event) => {
      filter[name] = event.target.value.trim();
      changed();
    });
  const name = input({
    value: filter.resource_name,
    placeholder: t("applies to name"),
    "aria-label": t("Applies to the resource called"),
    class: "mono",
    disabled: !filter.resource_type || filter.resource_type === "CLUSTER",
    oninput: typed("resource_name"),
  });
  const tools = h(
    "div.filter-row",
    null,
    filterBox(
      t("Filter permissions"),
      (text) => {
        filter.text = text;
        changed();
      },
      filter.text,
    ),
    input({
      value: filter.principal,
      placeholder: "User:alice",
      "aria-label": t("Only of the principal"),
      class: "mono",
      oninput: typed("principal"),
    }),
    select([["", t("All resources")], ...kinds()], filter.resource_type, {
      "aria-label": t("Kind of resource"),
      onchange: (event) => {
        filter.resource_type = event.target.value;
        name.disabled = !filter.resource_type || filter.resource_type === "CLUSTER";
        if (name.disabled) name.value = filter.resource_name = "";
        changed();
      },
    }),
    name,
  );
  const element = card({ title: t("Permissions"), tools: [remove], body: [tools, grid.element] });
  return { element, reload: () => grid.reload() };
}
