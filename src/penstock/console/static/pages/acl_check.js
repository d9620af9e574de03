// "May this principal do that, and by which rule?" The address has the question.
import { get, query } from "../api.js";
import { banner, card, field } from "../components.js";
import { h, show } from "../dom.js";
import { at, note, withQuery } from "../router.js";
import { t } from "../translations.js";
import { resourceFields } from "./acl_cells.js";
import { meanings, resourceText } from "./acl_meanings.js";

export function check(page, scope) {
  const answer = h("div", { "aria-live": "polite" });
  const operations = h("select.select");
  const fields = resourceFields(
    { ...page.query, host: page.query.host ?? "127.0.0.1", nameHelp: t("One name, not a prefix.") },
    (kind) =>
      show(
        operations,
        Object.keys(meanings()[kind])
          .filter((each) => each !== "ALL")
          .map((each) => h("option", { value: each, selected: each === page.query.operation }, each)),
      ),
  );
  fields.changed();
  const ask = async () => {
    const asked = {
      principal: fields.principal.value.trim(),
      operation: operations.value,
      resource_type: fields.kind.value,
      resource_name: fields.nameOf(),
      host: fields.host.value.trim(),
    };
    const { resource_type: type, resource_name: name, ...same } = asked;
    note({ ...same, type, name });
    try {
      const told = await get(`${scope}/decision${query(asked)}`, page.signal);
      show(answer, verdict(asked, told));
    } catch (problem) {
      if (problem.name !== "AbortError") show(answer, banner("error", problem.title, problem.message));
    }
  };
  const element = card({
    title: t("Who may do what?"),
    body: h(
      "form.card-body.stack",
      {
        onsubmit: (event) => {
          event.preventDefault();
          return ask();
        },
      },
      h("div.fields", null, field(t("Principal"), fields.principal), field(t("Operation"), operations)),
      h("div.fields", null, field(t("Kind of resource"), fields.kind), field(t("From address"), fields.host)),
      fields.named,
      h("div", null, h("button.btn.primary", { type: "submit" }, t("Ask"))),
      answer,
    ),
  });
  if (page.query.principal && page.query.operation) ask();
  return element;
}

function verdict(asked, told) {
  const question = `${asked.principal} · ${asked.operation} · ${resourceText({ ...asked, pattern_type: "LITERAL" })}`;
  return banner(
    told.is_allowed ? "ok" : "error",
    told.is_allowed ? t("Yes, it may") : t("No, it may not"),
    `${question}: ${told.reason}`,
    told.acl
      ? h(
          "a.btn.small",
          { href: withQuery(at`/acls`, { principal: told.acl.principal, type: told.acl.resource_type }) },
          t("Show the rule"),
        )
      : null,
  );
}
