// The parts that pages are made of: heads, cards, states, fields, commands, banners.
import { append, h, show, uid } from "./dom.js";
import { icon } from "./icons.js";
import { byteParts, compact, count } from "./format.js";
import { sparkline } from "./charts.js";
import { t } from "./translations.js";

export function pageHead({ title, note, actions = [], isName = false }) {
  return h(
    "header.page-head",
    null,
    h("div", null, h(isName ? "h1.mono" : "h1", null, title), note ? h("p", null, note) : null),
    h("div.actions", null, actions),
  );
}

export function card({ title, count: number, tools, body, label }) {
  const head =
    title || tools
      ? h(
          "div.card-head",
          null,
          title ? h("h2", null, title) : null,
          number === undefined ? null : h("span.count", null, number),
          tools ? h("div.tools", null, tools) : null,
        )
      : null;
  return h("section.card", { "aria-label": label ?? title }, head, body);
}

export function button(text, onclick, { kind = "", symbol, title, disabled, type = "button", small } = {}) {
  const element = h(
    "button.btn",
    { type, title, disabled, class: [kind, small && "small"].filter(Boolean).join(" ") },
    symbol ? icon(symbol) : null,
    text,
  );
  if (onclick) element.addEventListener("click", () => busy(element, onclick));
  return element;
}

export function iconButton(symbol, label, onclick, { small = true, kind = "ghost" } = {}) {
  const element = h(
    "button.btn.icon-only",
    { type: "button", "aria-label": label, title: label, class: `${kind}${small ? " small" : ""}` },
    icon(symbol),
  );
  element.addEventListener("click", (event) => {
    event.stopPropagation();
    busy(element, () => onclick(event));
  });
  return element;
}

/** Marks a button while its action runs, so that it is not pressed twice. */
export async function busy(element, action) {
  if (element.classList.contains("busy")) return;
  const result = action();
  if (!(result instanceof Promise)) return;
  element.classList.add("busy");
  element.setAttribute("aria-busy", "true");
  try {
    await result;
  } finally {
    element.classList.remove("busy");
    element.removeAttribute("aria-busy");
  }
}

/** ok, warn, error or idle, with a word. */
export function status(kind, text) {
  return h("span.status", { class: kind }, h("span.dot"), text);
}

const TOPIC_STATES = {
  healthy: ["ok", "Healthy"],
  degraded: ["warn", "Degraded"],
  under_replicated: ["warn", "Degraded"],
  offline: ["error", "Offline"],
  unavailable: ["error", "Offline"],
};
const GROUP_STATES = {
  stable: ["ok", "Stable"],
  empty: ["idle", "No members"],
  dead: ["idle", "Dead"],
  paused: ["warn", "Paused"],
  preparingrebalance: ["warn", "Rebalancing"],
  completingrebalance: ["warn", "Rebalancing"],
  assigning: ["warn", "Rebalancing"],
  reconciling: ["warn", "Rebalancing"],
};

export function topicStatus(state) {
  const [kind, text] = TOPIC_STATES[String(state).toLowerCase()] ?? ["idle", state];
  return status(kind, t(text));
}

export function groupStatus(state, isPaused = false) {
  const [kind, text] = isPaused
    ? GROUP_STATES.paused
    : (GROUP_STATES[
        String(state)
          .toLowerCase()
          .replace(/[^a-z]/g, "")
      ] ?? ["idle", state]);
  return status(kind, t(text));
}

export function tile({ label, value, unit = "", note = "", noteKind = "", values, colour = 1, href }) {
  return h(
    href ? "a.card.kpi" : "div.card.kpi",
    { href, class: values ? "" : "plain" },
    h("div.label", null, label),
    h("div.value", null, value, unit ? h("small", null, unit) : null),
    h("div.note", { class: noteKind }, note),
    values ? sparkline(values, colour) : null,
  );
}

export function numberTile({ value, suffix = "", ...rest }) {
  const [number, unit] = compact(value);
  return tile({ value: number, unit: unit + suffix, ...rest });
}

export function bytesTile({ value, suffix = "", ...rest }) {
  const [number, unit] = byteParts(value);
  return tile({ value: number, unit: unit + suffix, ...rest });
}

export function facts(pairs) {
  return h(
    "dl.facts",
    null,
    pairs.filter(Boolean).map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value ?? "–"))),
  );
}

export function pairs(list) {
  return h(
    "dl.kv",
    null,
    list.filter(Boolean).flatMap(([name, value]) => [h("dt", null, name), h("dd", null, value ?? "–")]),
  );
}

export function meter(share, label) {
  const kind = share >= 0.9 ? "error" : share >= 0.75 ? "warn" : "";
  return h(
    "span.meter",
    { class: kind, role: "img", "aria-label": label ?? `${Math.round(share * 100)} %` },
    h("i", { style: { width: `${Math.max(0, Math.min(1, share)) * 100}%` } }),
  );
}

/** A lag with a bar beside it, in proportion to the largest in sight. */
export function lagCell(lag, most) {
  if (lag === null || lag === undefined) return "–";
  const kind = lag > 100000 ? "error" : lag > 10000 ? "warn" : "";
  return h(
    "span.lag-cell",
    null,
    count(lag),
    h(
      "span.meter",
      { class: kind, "aria-hidden": "true" },
      h("i", { style: { width: `${lag && most ? Math.max(4, (lag / most) * 100) : 0}%` } }),
    ),
  );
}

/** A command to copy. */
export function command(text) {
  const copyButton = iconButton("copy", t("Copy"), async () => {
    await navigator.clipboard?.writeText(text);
    show(copyButton, icon("check"));
    setTimeout(() => show(copyButton, icon("copy")), 1500);
  });
  return h("div.command", null, h("code", { tabindex: "0" }, text), copyButton);
}

export function emptyState({ symbol = "info", title, text, commands = [], actions = [] }) {
  return h(
    "div.empty",
    null,
    icon(symbol),
    h("h3", null, title),
    text ? h("p", null, text) : null,
    commands.map(command),
    actions.length ? h("div.row", null, actions) : null,
  );
}

export function banner(kind, title, text, action) {
  const symbol = { error: "warn", warn: "warn", ok: "check" }[kind] ?? "info";
  return h(
    "div.banner",
    { class: kind, role: kind === "error" ? "alert" : "status" },
    icon(symbol),
    h("div.grow", null, h("p.strong", null, title), text ? h("p.break", null, text) : null),
    action,
  );
}

export const problemBanner = (problem, action) =>
  banner("error", problem.title ?? t("Something went wrong"), problem.message, action);

let fieldNumber = 0;

/** A labelled control with help below it and a place for a problem. */
export function field(label, control, help) {
  const id = control.id || `field-${++fieldNumber}`;
  control.id = id;
  const problem = h("div.problem", { id: `${id}-problem`, role: "alert", hidden: true });
  const element = h(
    "div.field",
    null,
    h("label", { for: id }, label),
    control,
    help ? h("div.help", { id: `${id}-help` }, help) : null,
    problem,
  );
  control.setAttribute("aria-describedby", [help && `${id}-help`, `${id}-problem`].filter(Boolean).join(" "));
  element.control = control;
  element.complain = (text) => {
    problem.hidden = !text;
    show(problem, text ?? "");
    control.setAttribute("aria-invalid", text ? "true" : "false");
  };
  control.addEventListener("input", () => element.complain(null));
  return element;
}

export const input = (attributes = {}) =>
  h("input.input", { type: "text", autocomplete: "off", spellcheck: "false", ...attributes });
export const textarea = (attributes = {}, value = "") =>
  h("textarea.textarea", { spellcheck: "false", value, ...attributes });

export function select(options, value, attributes = {}) {
  const element = h(
    "select.select",
    attributes,
    options.map(([key, text]) => h("option", { value: key, selected: String(key) === String(value) }, text)),
  );
  return element;
}

export function checkbox(text, checked, onchange) {
  const box = h("input", { type: "checkbox", checked });
  if (onchange) box.addEventListener("change", () => onchange(box.checked));
  const element = h("label.check", null, box, text);
  element.box = box;
  return element;
}

export function segments(options, value, onchange, label) {
  const element = h("div.segments", { role: "group", "aria-label": label });
  const draw = (chosen) =>
    show(
      element,
      options.map(([key, text]) =>
        h(
          "button",
          {
            type: "button",
            "aria-pressed": String(key === chosen),
            onclick: () => {
              draw(key);
              onchange(key);
            },
          },
          text,
        ),
      ),
    );
  draw(value);
  return element;
}

export function chips(options, value, onchange) {
  const element = h("div.row.wrap");
  const draw = (chosen) =>
    show(
      element,
      options.map(([key, text]) =>
        h(
          "button.filter-chip",
          {
            type: "button",
            "aria-pressed": String(key === chosen),
            onclick: () => {
              draw(key);
              onchange(key);
            },
          },
          text,
        ),
      ),
    );
  draw(value);
  return element;
}

export function radioOptions(options, value, onchange) {
  const name = uid("choice");
  return h(
    "div.options",
    { role: "radiogroup" },
    options.map(([key, title, text]) =>
      h(
        "label.option",
        null,
        h("input", { type: "radio", name, value: key, checked: key === value, onchange: () => onchange(key) }),
        h("span", null, h("b", null, title), text ? h("small", null, text) : null),
      ),
    ),
  );
}

export function tabs(items, current) {
  const element = h(
    "nav.tabs",
    { "aria-label": t("Sections") },
    items.map(([key, text, href, number]) =>
      h(
        "a",
        { href, "aria-current": key === current ? "page" : null },
        text,
        number === undefined ? null : h("span.count", null, number),
      ),
    ),
  );
  // Where not all of them fit, the current one is in sight.
  requestAnimationFrame(() => {
    const chosen = element.querySelector("[aria-current]");
    if (chosen) element.scrollLeft = chosen.offsetLeft + chosen.offsetWidth - element.clientWidth;
  });
  return element;
}

export function live(text) {
  return h("span.live", null, h("span.dot"), text);
}

export { append };
