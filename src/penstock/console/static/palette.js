// The command palette: Ctrl-K anywhere. Pages, actions, topics and groups by a few letters of their name.
import { get, path, query } from "./api.js";
import { debounce, h, show } from "./dom.js";
import { icon } from "./icons.js";
import { at, go, state } from "./router.js";
import { t } from "./translations.js";

export function openPalette(commands) {
  if (document.querySelector(".palette[open]")) return;
  const list = h("ul", { role: "listbox", id: "palette-list", "aria-label": t("Results") });
  const ask = h("input", {
    type: "text",
    role: "combobox",
    "aria-expanded": "true",
    "aria-controls": "palette-list",
    "aria-label": t("Search or run a command"),
    placeholder: t("Search topics, groups, pages and actions"),
    autocomplete: "off",
    spellcheck: "false",
  });
  const element = h(
    "dialog.palette",
    { "aria-label": t("Search or run a command") },
    h("div.ask", null, icon("search"), ask, h("kbd", null, "Esc")),
    list,
    h("footer", null, h("span", null, "↑ ↓ ", t("choose")), h("span", null, "↵ ", t("open"))),
  );
  let found = [];
  let chosen = 0;

  const draw = () => {
    show(
      list,
      found.map((each, index) =>
        h(
          "li",
          {
            role: "option",
            id: `palette-${index}`,
            "aria-selected": String(index === chosen),
            onclick: () => run(each),
            onpointermove: () => {
              if (chosen !== index) {
                chosen = index;
                mark();
              }
            },
          },
          icon(each.symbol),
          h("b", null, each.text),
          h("small", null, each.kind),
        ),
      ),
    );
    if (!found.length)
      show(list, h("li.empty.bare", null, h("p", null, t("Nothing matches. Try part of a topic's or group's name."))));
    mark();
  };
  const mark = () => {
    [...list.children].forEach((each, index) => {
      each.setAttribute("aria-selected", String(index === chosen));
      if (index === chosen) each.scrollIntoView({ block: "nearest" });
    });
    ask.setAttribute("aria-activedescendant", `palette-${chosen}`);
  };
  const run = (each) => {
    element.close();
    if (each.href) go(each.href);
    else each.run();
  };
  const local = (text) => commands.filter((each) => matches(each.text, text) || matches(each.kind, text));
  const remote = debounce(async (text) => {
    if (!text) return;
    const scope = path`/clusters/${state.cluster}`;
    const answers = await Promise.allSettled([
      get(`${scope}/topics${query({ text, limit: 6 })}`),
      get(`${scope}/groups${query({ text, limit: 6 })}`),
    ]);
    if (ask.value.trim() !== text) return;
    const [topics, groups] = answers.map((each) => (each.status === "fulfilled" ? each.value.items : []));
    found = [
      ...topics.map(({ name }) => ({ text: name, kind: t("topic"), symbol: "topics", href: at`/topics/${name}` })),
      ...groups.map(({ name }) => ({ text: name, kind: t("group"), symbol: "groups", href: at`/groups/${name}` })),
      ...local(text),
    ];
    chosen = 0;
    draw();
  }, 120);

  ask.addEventListener("input", () => {
    const text = ask.value.trim();
    found = local(text);
    chosen = 0;
    draw();
    remote(text);
  });
  ask.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") chosen = Math.min(found.length - 1, chosen + 1);
    else if (event.key === "ArrowUp") chosen = Math.max(0, chosen - 1);
    else if (event.key === "Enter" && found[chosen]) return run(found[chosen]);
    else return undefined;
    event.preventDefault();
    return mark();
  });
  element.addEventListener("click", (event) => {
    if (event.target === element) element.close();
  });
  element.addEventListener("close", () => element.remove());
  document.body.append(element);
  element.showModal();
  found = local("");
  draw();
  ask.focus();
}

function matches(text, wanted) {
  return wanted
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.toLowerCase().includes(word));
}
