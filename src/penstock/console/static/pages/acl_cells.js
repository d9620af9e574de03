// One permission in tables and forms: how it reads, and the fields that say whom and what it is about.
import { field, input, select, status } from "../components.js";
import { h } from "../dom.js";
import { at, withQuery } from "../router.js";
import { t } from "../translations.js";
import { CLUSTER_NAME, kinds, meanings, resourceText } from "./acl_meanings.js";

export const keyOf = (each) => Object.values(each).join("\n");
export const spoken = (each) => `${each.permission} ${each.principal} ${each.operation} ${each.resource_name}`;

export function principalLink(each) {
  return h("a.mono", { href: withQuery(at`/acls`, { principal: each.principal }) }, each.principal);
}

export function permission(each) {
  return each.permission === "DENY" ? status("error", t("Denied")) : status("ok", t("Allowed"));
}

export function operation(each) {
  return h("code", { title: meanings()[each.resource_type]?.[each.operation] ?? "" }, each.operation);
}

export function resource(each) {
  return h(
    "span",
    null,
    h("span.mono", null, resourceText(each)),
    each.pattern_type === "PREFIXED" ? [" ", h("span.tag", null, t("prefix"))] : null,
  );
}

/** The fields that say whom and what a rule is about, for adding and asking. */
export function resourceFields(values, onkind) {
  const principal = input({ value: values.principal ?? "", placeholder: "User:alice", class: "mono" });
  const host = input({ value: values.host, class: "mono" });
  const name = input({ value: values.name ?? "", class: "mono" });
  const kind = select(kinds(), values.type ?? "TOPIC", { onchange: () => changed() });
  const named = field(t("Name"), name, values.nameHelp);
  const changed = () => {
    named.hidden = kind.value === "CLUSTER";
    onkind(kind.value);
  };
  return {
    principal,
    host,
    kind,
    named,
    changed,
    nameOf: () => (kind.value === "CLUSTER" ? CLUSTER_NAME : name.value.trim()),
  };
}
