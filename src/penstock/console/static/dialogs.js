// Dialogs, drawers, confirmations in proportion to the damage, menus, and the word after every action.
import { h, show } from "./dom.js";
import { banner, button, field, iconButton, input, problemBanner } from "./components.js";
import { t } from "./translations.js";

/** A dialog in the middle. `build(close)` gives {body, footer}; it closes by Escape, its cross, or `close()`. */
export function dialog({ title, body, footer = [], wide = false, onclose }) {
  const element = h("dialog.dialog", { class: wide ? "wide" : "", "aria-label": title });
  const close = () => element.close();
  const parts = { body: h("div.body", null, body), footer: h("footer", null, footer) };
  show(
    element,
    h("header", null, h("h2", null, title), iconButton("close", t("Close"), close)),
    parts.body,
    footer.length ? parts.footer : null,
  );
  return opened(element, { close, ...parts }, onclose);
}

/** A panel at the right edge, for one thing in detail. */
export function drawer({ title, body, footer = [], onclose }) {
  const element = h("dialog.drawer", { "aria-label": title });
  const close = () => element.close();
  const parts = { body: h("div.body", { tabindex: "0" }, body), footer: h("footer", null, footer) };
  show(
    element,
    h("header", null, h("h2", null, title), iconButton("close", t("Close"), close)),
    parts.body,
    footer.length ? parts.footer : null,
  );
  element.addEventListener("click", (event) => {
    if (event.target === element) close();
  });
  return opened(element, { close, ...parts }, onclose);
}

function opened(element, parts, onclose) {
  element.addEventListener("close", () => {
    if (toasts && element.contains(toasts)) document.body.append(toasts);
    element.remove();
    raiseToasts();
    onclose?.();
  });
  document.body.append(element);
  element.showModal();
  raiseToasts();
  element.querySelector("[autofocus]")?.focus();
  return { element, ...parts };
}

/** Closes what a page has left open. */
export function closeDialogs() {
  for (const element of document.querySelectorAll("dialog[open]")) element.close();
}

/**
 * A form in a dialog. `submit()` does it and may throw a Problem, which is shown in the dialog; what was typed stays.
 */
export function form({ title, body, action, submit, danger = false, wide = false, note }) {
  const trouble = h("div");
  const go = h("button.btn", { type: "submit", class: danger ? "danger-solid" : "primary" }, action);
  const opened = dialog({
    title,
    wide,
    body: h(
      "form.stack.loose",
      {
        id: "dialog-form",
        novalidate: true,
        onsubmit: async (event) => {
          event.preventDefault();
          if (go.disabled || go.classList.contains("busy")) return;
          go.classList.add("busy");
          show(trouble);
          try {
            if ((await submit()) !== false) opened.close();
          } catch (problem) {
            if (problem.status === undefined) console.error(problem);
            show(trouble, problemBanner(problem));
            trouble.scrollIntoView({ block: "nearest" });
          } finally {
            go.classList.remove("busy");
          }
        },
      },
      body,
      trouble,
    ),
    footer: [note ? h("span.note", null, note) : null, button(t("Cancel"), () => opened.close()), go].filter(Boolean),
  });
  go.setAttribute("form", "dialog-form");
  opened.go = go;
  return opened;
}

/** Asks before something that can be undone or is small. */
export function confirm({ title, text, action, submit, danger = true }) {
  return form({ title, body: h("p.break", null, text), action, submit, danger });
}

/** Asks before something that cannot be undone: the name has to be typed. */
export function confirmTyped({ title, text, consequences = [], name, action, submit }) {
  const typed = input({ autofocus: true, class: "mono" });
  const opened = form({
    title,
    action,
    danger: true,
    submit: () => submit(typed.value),
    body: [
      banner("error", text, t("This cannot be undone.")),
      consequences.length
        ? h(
            "ul.stack.tight",
            null,
            consequences.map((each) => h("li.break", null, "· ", each)),
          )
        : null,
      field(t("Type {name} to confirm", { name }), typed),
    ],
  });
  opened.go.disabled = true;
  typed.addEventListener("input", () => {
    opened.go.disabled = typed.value !== name;
  });
  typed.focus();
  return opened;
}

let toasts = null;

// A modal dialog hides what is not in the top layer; a popover that is shown again comes before it.
function raiseToasts() {
  if (!toasts?.isConnected || !toasts.childElementCount) return;
  const dialogs = document.querySelectorAll("dialog[open]");
  const home = dialogs.length ? dialogs[dialogs.length - 1] : document.body;
  if (toasts.parentElement !== home) home.append(toasts);
  if (toasts.matches(":popover-open")) toasts.hidePopover();
  toasts.showPopover();
}

/** A word after an action: what was done, or what was not. */
export function toast(kind, title, text, ms = kind === "error" ? 12000 : 5000) {
  if (!toasts) toasts = h("div.toasts", { popover: "manual", role: "status", "aria-live": "polite" });
  if (!toasts.isConnected) document.body.append(toasts);
  const element = h(
    "div.toast",
    { class: kind },
    h("p", null, title, text ? h("small", null, text) : null),
    iconButton("close", t("Dismiss"), () => element.remove()),
  );
  toasts.append(element);
  while (toasts.childElementCount > 4) toasts.firstElementChild.remove();
  raiseToasts();
  setTimeout(() => {
    element.remove();
    if (!toasts.childElementCount && toasts.matches(":popover-open")) toasts.hidePopover();
  }, ms);
}

/** Runs an action and says how it went. */
export async function act(action, said) {
  try {
    const result = await action();
    if (said) toast("ok", typeof said === "function" ? said(result) : said);
    return result;
  } catch (problem) {
    if (problem.name !== "AbortError") toast("error", problem.title ?? t("Something went wrong"), problem.message);
    return undefined;
  }
}

/** A menu below a button: [{text, onclick, symbol, danger, checked}] or "-" for a line, {title}. */
export function menu(anchor, items) {
  const element = h("div.menu", { popover: "auto", role: "menu" });
  show(
    element,
    items.filter(Boolean).map((item) => {
      if (item === "-") return h("hr");
      if (item.title) return h("div.title", { role: "presentation" }, item.title);
      return h(
        "button",
        {
          type: "button",
          role: item.checked === undefined ? "menuitem" : "menuitemradio",
          "aria-checked": item.checked === undefined ? null : String(item.checked),
          class: item.danger ? "danger" : "",
          onclick: () => {
            element.hidePopover();
            item.onclick();
          },
        },
        item.symbol ?? null,
        item.text,
      );
    }),
  );
  document.body.append(element);
  element.addEventListener("toggle", (event) => {
    if (event.newState === "closed") element.remove();
  });
  element.addEventListener("keydown", (event) => {
    const buttons = [...element.querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement);
    if (event.key === "ArrowDown") buttons[(at + 1) % buttons.length].focus();
    else if (event.key === "ArrowUp") buttons[(at - 1 + buttons.length) % buttons.length].focus();
    else return;
    event.preventDefault();
  });
  element.showPopover();
  const box = anchor.getBoundingClientRect();
  const left = Math.min(box.left, innerWidth - element.offsetWidth - 8);
  const below = box.bottom + 4 + element.offsetHeight < innerHeight;
  element.style.position = "fixed";
  element.style.margin = "0";
  element.style.left = `${Math.max(8, left)}px`;
  element.style.top = `${below ? box.bottom + 4 : Math.max(8, box.top - element.offsetHeight - 4)}px`;
  element.querySelector("button")?.focus();
}
