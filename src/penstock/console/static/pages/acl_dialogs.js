// Adding permissions, and removing them with what that changes.
import { post } from "../api.js";
import { banner, field, radioOptions, select, status } from "../components.js";
import { form, toast } from "../dialogs.js";
import { h, show } from "../dom.js";
import { table } from "../grid.js";
import { plural, t } from "../translations.js";
import { keyOf, permission, resource, resourceFields } from "./acl_cells.js";
import { meanings } from "./acl_meanings.js";

export function addDialog(scope, ondone) {
  const operations = h("div.options.operations", { role: "group", "aria-label": t("Operations") });
  let effect = "ALLOW";
  const fields = resourceFields({ host: "*", nameHelp: t("An asterisk stands for every one.") }, (kind) => {
    pattern.hidden = kind === "CLUSTER";
    show(
      operations,
      Object.entries(meanings()[kind]).map(([name, text]) =>
        h(
          "label.option",
          null,
          h("input", { type: "checkbox", value: name }),
          h("span", null, h("b.mono", null, name), h("small", null, text)),
        ),
      ),
    );
  });
  const matches = select(
    [
      ["LITERAL", t("exactly this name")],
      ["PREFIXED", t("every name with this prefix")],
    ],
    "LITERAL",
  );
  const pattern = field(t("Matches"), matches);
  fields.changed();
  form({
    title: t("Add permission"),
    action: t("Add permission"),
    wide: true,
    body: [
      h(
        "div.fields",
        null,
        field(t("Principal"), fields.principal, t("User:alice, or alice. User:* is everyone.")),
        field(t("From address"), fields.host, t("An asterisk: from anywhere.")),
      ),
      h("div.fields", null, field(t("Kind of resource"), fields.kind), pattern),
      fields.named,
      h("div.field", null, h("span.label", null, t("Operations")), operations),
      h(
        "div.field",
        null,
        h("span.label", null, t("Effect")),
        radioOptions(
          [
            ["ALLOW", t("Allow"), t("What nothing allows is denied.")],
            ["DENY", t("Deny"), t("Wins over everything that allows it.")],
          ],
          effect,
          (key) => {
            effect = key;
          },
        ),
      ),
    ],
    submit: async () => {
      const wanted = [...operations.querySelectorAll("input:checked")].map((each) => each.value);
      const done = await post(scope, {
        principal: fields.principal.value.trim(),
        permission: effect,
        operations: wanted,
        resource_type: fields.kind.value,
        resource_name: fields.nameOf(),
        pattern_type: fields.kind.value === "CLUSTER" ? "LITERAL" : matches.value,
        host: fields.host.value.trim() || "*",
      });
      report(
        done,
        plural(done.filter((each) => each.is_done).length, "{n} permission is added", "{n} permissions are added"),
      );
      await ondone();
    },
  });
}

function report(done, said) {
  const failed = done.filter((each) => !each.is_done);
  if (failed.length < done.length) toast("ok", said);
  if (failed.length)
    toast("error", t("Not everything was done"), failed.map((each) => `${each.item}: ${each.error}`).join("; "));
}

/** Shows first what each removal changes, by the rules that stay. */
export async function removeDialog(scope, chosen, ondone) {
  const effects = await post(`${scope}/removal-preview`, { acls: chosen });
  const changes = effects.filter((each) => each.before.is_allowed !== each.after.is_allowed);
  const opened = changes.filter((each) => each.after.is_allowed);
  form({
    title: t("Remove permissions"),
    action: plural(chosen.length, "Remove {n} permission", "Remove {n} permissions"),
    danger: true,
    wide: true,
    body: [
      opened.length
        ? banner(
            "warn",
            plural(opened.length, "{n} removal allows something", "{n} removals allow something"),
            t("A denial goes, and another rule allows what it denied."),
          )
        : null,
      changes.length
        ? null
        : banner("info", t("Nothing changes for anyone"), t("Other rules decide the same without these.")),
      table(
        [
          {
            key: "acl",
            title: t("Permission"),
            cell: ({ acl }) => [permission(acl), " ", h("span.mono.break", null, `${acl.principal} ${acl.operation}`)],
          },
          { key: "resource", title: t("Resource"), cell: ({ acl }) => resource(acl) },
          { key: "after", title: t("Afterwards"), cell: effect },
        ],
        effects,
        { key: (each) => keyOf(each.acl), label: t("What the removal changes") },
      ),
    ],
    submit: async () => {
      const done = await post(`${scope}/removal`, { acls: chosen });
      report(
        done,
        plural(done.filter((each) => each.is_done).length, "{n} permission is removed", "{n} permissions are removed"),
      );
      await ondone();
    },
  });
}

function effect({ exists, before, after }) {
  if (!exists) return status("idle", t("is gone already"));
  if (before.is_allowed && !after.is_allowed) return status("error", t("may no longer"));
  if (!before.is_allowed && after.is_allowed) return [status("warn", t("may then")), why(after)];
  return [status("idle", after.is_allowed ? t("still may") : t("still may not")), why(after)];
}

const why = (decision) => h("div", null, h("small.muted.break", null, decision.reason));
