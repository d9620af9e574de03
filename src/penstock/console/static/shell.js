// The frame around every page: navigation, cluster, crumbs, search, theme, language, user.
import { base, del, get, path } from "./api.js";
import { h, show } from "./dom.js";
import { icon, mark } from "./icons.js";
import { iconButton } from "./components.js";
import { act, dialog, menu } from "./dialogs.js";
import { count, time } from "./format.js";
import { openPalette } from "./palette.js";
import { at, draw, go, state } from "./router.js";
import { plural, t, useLanguage } from "./translations.js";

const SECTIONS = [
  [
    "",
    [
      ["overview", "Overview", "/", "overview"],
      ["topics", "Topics", "/topics", "topics"],
      ["groups", "Consumer groups", "/groups", "groups"],
      ["messages", "Messages", "/messages", "messages"],
      ["delayed", "Delayed messages", "/delayed", "delayed"],
      ["dead", "Dead letters", "/dead-letters", "dead"],
      ["transactions", "Transactions", "/transactions", "transactions"],
    ],
  ],
  [
    "Infrastructure",
    [
      ["brokers", "Brokers", "/brokers", "brokers"],
      ["databases", "Database nodes", "/databases", "database"],
      ["pipeline", "Pipeline", "/pipeline", "pipeline"],
    ],
  ],
  [
    "Access",
    [
      ["cluster_users", "Cluster users", "/cluster-users", "key"],
      ["acls", "Permissions", "/acls", "shield"],
      ["quotas", "Quotas", "/quotas", "gauge"],
    ],
  ],
  [
    "Operate",
    [
      ["alerts", "Alerts", "/alerts", "alerts"],
      ["jobs", "Cleaning jobs", "/jobs", "cleaning"],
      ["users", "Users and roles", "/users", "users"],
      ["audit", "Audit log", "/audit", "audit"],
    ],
  ],
];

const nav = h("nav.nav", { "aria-label": t("Main") });
const crumbs = h("nav.crumbs", { "aria-label": t("You are here") });
const tabbar = h("nav.tabbar", { "aria-label": t("Main on a phone") });
const outage = h("div.outage", { role: "status", hidden: true });
const counts = {};

export const isPage = (key) => SECTIONS.flatMap(([, items]) => items).some(([each]) => each === key);

export function buildShell() {
  const search = h(
    "button.search-button",
    { type: "button", "aria-label": t("Search or run a command"), onclick: palette },
    icon("search"),
    h("span.grow", null, t("Search or run a command")),
    h("kbd", null, "Ctrl K"),
  );
  const theme = iconButton("moon", t("Theme and language"), () => menu(theme, preferences()), {
    small: false,
    kind: "",
  });
  show(
    document.getElementById("console"),
    h("a.skip", { href: "#main" }, t("Skip to content")),
    h(
      "div.shell",
      null,
      nav,
      h("div.side", null, h("header.bar", null, crumbs, search, theme), outage, h("main.main", { id: "main", tabindex: "-1" })),
      tabbar,
    ),
  );
  document.addEventListener("keydown", keys);
}

function keys(event) {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    palette();
    return;
  }
  if (event.target.closest("input,textarea,select,dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    const box = document.querySelector("#main [data-search]");
    event.preventDefault();
    if (box) box.focus();
    else palette();
  } else if (event.key === "?") help();
}

function palette() {
  const pages = SECTIONS.flatMap(([, items]) => items).map(([, title, address, symbol]) => ({
    text: t(title),
    kind: t("page"),
    symbol,
    href: at`/`.replace(/\/$/, "") + address,
  }));
  const actions = [
    { text: t("Create a topic"), kind: t("action"), symbol: "plus", href: `${at`/topics`}?create=1` },
    { text: t("Produce a message"), kind: t("action"), symbol: "send", href: `${at`/messages`}?produce=1` },
    { text: t("Light theme"), kind: t("theme"), symbol: "sun", run: () => setTheme("light") },
    { text: t("Dark theme"), kind: t("theme"), symbol: "moon", run: () => setTheme("dark") },
    { text: t("Theme of the system"), kind: t("theme"), symbol: "system", run: () => setTheme("") },
    { text: "English", kind: t("language"), symbol: "globe", run: () => speak("en") },
    { text: "中文", kind: t("language"), symbol: "globe", run: () => speak("zh") },
    { text: t("Keyboard shortcuts"), kind: t("help"), symbol: "info", run: help },
    ...state.clusters.map((each) => ({
      text: each.name,
      kind: t("cluster"),
      symbol: "brokers",
      href: `${base}/c/${encodeURIComponent(each.name)}/`,
    })),
  ];
  openPalette([...pages, ...actions]);
}

function help() {
  const rows = [
    ["Ctrl K", t("Search or run a command")],
    ["/", t("Filter the table in view")],
    ["?", t("This list")],
    ["Esc", t("Close what is open")],
    ["Tab", t("Go through links and controls")],
  ];
  dialog({
    title: t("Keyboard shortcuts"),
    body: h(
      "dl.kv",
      null,
      rows.flatMap(([key, text]) => [h("dt", null, h("kbd", null, key)), h("dd", null, text)]),
    ),
  });
}

export function setTheme(theme) {
  if (theme) {
    localStorage.setItem("theme", theme);
    document.documentElement.dataset.theme = theme;
  } else {
    localStorage.removeItem("theme");
    delete document.documentElement.dataset.theme;
  }
}

function speak(language) {
  useLanguage(language);
  location.reload();
}

function preferences() {
  const theme = document.documentElement.dataset.theme ?? "";
  const isChinese = document.documentElement.lang.startsWith("zh");
  return [
    { title: t("Theme") },
    { text: t("Like the system"), symbol: icon("system"), checked: theme === "", onclick: () => setTheme("") },
    { text: t("Light"), symbol: icon("sun"), checked: theme === "light", onclick: () => setTheme("light") },
    { text: t("Dark"), symbol: icon("moon"), checked: theme === "dark", onclick: () => setTheme("dark") },
    { title: t("Language") },
    { text: "English", symbol: icon("globe"), checked: !isChinese, onclick: () => speak("en") },
    { text: "中文", symbol: icon("globe"), checked: isChinese, onclick: () => speak("zh") },
  ];
}

let place = null;

/** After each change of page: what is current, and the crumbs [[text, address], ...]. */
export function onPage(info, params) {
  place = info;
  drawNav();
  const trail = info?.crumbs?.(params) ?? [];
  // A phone has room for two.
  const onDesk = trail.length > 1 ? "hide-phone" : "";
  show(
    crumbs,
    h("a", { class: onDesk, href: at`/` }, state.cluster),
    trail.map(([text, address], index) => [
      h("span", { class: index ? "" : onDesk }, "/"),
      index === trail.length - 1 ? h("span", { "aria-current": "page" }, text) : h("a", { href: address }, text),
    ]),
  );
  document.title = `${
    trail
      .map(([text]) => text)
      .reverse()
      .join(" · ") || "Penstock"
  } · ${state.cluster}`;
  document.getElementById("main").focus({ preventScroll: true });
}

function link([key, title, address, symbol]) {
  const number = counts[key];
  return h(
    "a.nav-link",
    { href: at`/`.replace(/\/$/, "") + address, "aria-current": place?.key === key ? "page" : null },
    icon(symbol),
    t(title),
    number ? h("span.count", { class: key === "alerts" ? "alarm" : "" }, count(number)) : null,
  );
}

function drawNav() {
  const switcher = h(
    "button.cluster-switch",
    {
      type: "button",
      "aria-label": t("Cluster {name}", { name: state.cluster }),
      onclick: () =>
        menu(switcher, [
          { title: t("Clusters") },
          ...state.clusters.map((each) => ({
            text: each.name,
            checked: each.name === state.cluster,
            onclick: () => go(`${base}/c/${encodeURIComponent(each.name)}/`),
          })),
        ]),
    },
    h(
      "span.grow",
      null,
      h("b", null, state.cluster),
      h("small", null, counts.brokers ? plural(counts.brokers, "{n} broker", "{n} brokers") : " "),
    ),
    icon("chevrons"),
  );
  const user = h(
    "button.user",
    { type: "button", onclick: () => menu(user, userMenu()) },
    h("span.avatar", { "aria-hidden": "true" }, (state.user?.name ?? "?").slice(0, 2)),
    h(
      "span.grow",
      null,
      h("span.strong", null, state.user?.name ?? ""),
      h("br"),
      h("small.muted", null, t(state.user?.role ?? "")),
    ),
  );
  const top = nav.scrollTop;
  show(
    nav,
    h("a.brand", { href: at`/` }, mark(), "Penstock"),
    switcher,
    SECTIONS.map(([title, items]) => [title ? h("h2", null, t(title)) : null, h("div", null, items.map(link))]),
    h("div.nav-foot", null, user),
  );
  nav.scrollTop = top;
  const short = [SECTIONS[0][1][0], SECTIONS[0][1][1], ["groups", "Groups", "/groups", "groups"], SECTIONS[0][1][3]];
  const more = h("button", { type: "button", onclick: () => openMore() }, icon("more"), t("More"));
  show(
    tabbar,
    short.map(([key, title, address, symbol]) =>
      h(
        "a",
        { href: at`/`.replace(/\/$/, "") + address, "aria-current": place?.key === key ? "page" : null },
        icon(symbol),
        t(title),
      ),
    ),
    more,
  );
}

function openMore() {
  const opened = dialog({
    title: state.cluster,
    body: h(
      "div.stack.tight",
      null,
      SECTIONS.flatMap(([, items]) => items).map(link),
      h("div.nav-link", null, icon("users"), state.user?.name ?? ""),
      h("button.btn", { type: "button", onclick: signOut }, icon("logout"), t("Sign out")),
    ),
  });
  opened.element.addEventListener("click", (event) => event.target.closest("a") && opened.close());
}

function userMenu() {
  return [
    { title: t("Signed in as {name} ({role})", { name: state.user?.name ?? "", role: t(state.user?.role ?? "") }) },
    { text: t("My account"), symbol: icon("users"), onclick: () => go(at`/account`) },
    { text: t("Sign out"), symbol: icon("logout"), onclick: signOut },
  ];
}

async function signOut() {
  await act(() => del("/account/sessions/current"));
  location.assign(`${base}/login${state.user?.issuer ? "/oidc/logout" : ""}`);
}

/** The numbers beside the navigation, from the console's cached snapshot. */
export async function refreshCounts() {
  try {
    const [told, firing] = await Promise.all([get(path`/clusters/${state.cluster}`), get("/alerts").catch(() => [])]);
    Object.assign(counts, {
      topics: told.summary.topics,
      groups: told.summary.groups,
      brokers: told.summary.brokers,
      alerts: firing.length,
    });
    drawNav();
    const { is_reachable: isReachable, at_ms: at } = told.summary;
    if (isReachable) sayOutage("");
    else if (at) sayOutage(t("The cluster does not answer. What you see is of {time} UTC.", { time: time(at) }));
    else sayOutage(t("The cluster does not answer."));
  } catch (problem) {
    // Otherwise the page in view says what is wrong.
    if (problem.status === 0) sayOutage(t("The console does not answer. What you see may be old."));
  }
}

/** Above every page: pages keep showing what they know. */
function sayOutage(text) {
  outage.hidden = !text;
  if (outage.textContent !== text) outage.textContent = text;
}

export { draw };
