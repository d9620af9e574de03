// Addresses. Every page, tab and selection has one; going somewhere never reloads the console.
import { base, query } from "./api.js";
import { closeDialogs } from "./dialogs.js";
import { h, show } from "./dom.js";
import { button, emptyState, problemBanner } from "./components.js";
import { t } from "./translations.js";

const routes = [];
let current = null;
let listener = () => {};

/** route("/topics/:topic", page): `page(context)` draws into context.root. */
export function route(pattern, page, info) {
  const names = [];
  const expression = pattern.replace(/:(\w+)/g, (_, name) => {
    names.push(name);
    return "([^/]+)";
  });
  routes.push({ expression: new RegExp(`^${expression}/?$`), names, page, info });
}

export const state = { cluster: "", clusters: [], user: null };

/** Where clients reach the cluster in view, for commands to copy. */
export const bootstrap = () =>
  state.clusters.find((each) => each.name === state.cluster)?.bootstrap ?? "127.0.0.1:9092";

/** The address of a page of the cluster in view: at`/topics/${name}`. */
export function at(strings, ...parts) {
  const text = strings.reduce((whole, piece, index) => whole + encodeURIComponent(parts[index - 1]) + piece);
  return `${base}/c/${encodeURIComponent(state.cluster)}${text}`;
}

export const withQuery = (address, values) => address + query(values);

export function go(address, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", address);
  return draw();
}

/** Changes the query of the address without drawing the page again. */
export function note(values) {
  const known = Object.fromEntries(new URLSearchParams(location.search));
  history.replaceState(null, "", location.pathname + query({ ...known, ...values }));
}

export function onDraw(action) {
  listener = action;
}

/** What a page gets: where to draw, the parts of its address, and timers and requests that end with it. */
class Context {
  constructor(root, params, values) {
    this.root = root;
    this.params = params;
    this.query = values;
    this.stop = new AbortController();
    this.timers = [];
    this.closing = [];
  }

  get signal() {
    return this.stop.signal;
  }

  /** Again and again while the page is in view; never two at once, and not while its tab is hidden. */
  every(ms, action) {
    let isRunning = false;
    this.timers.push(
      setInterval(async () => {
        if (isRunning || document.hidden) return;
        isRunning = true;
        try {
          await action();
        } catch {
          // The next turn tries again; the shell says when the cluster or the console does not answer.
        } finally {
          isRunning = false;
        }
      }, ms),
    );
  }

  onclose(action) {
    this.closing.push(action);
  }

  close() {
    this.stop.abort();
    this.timers.forEach(clearInterval);
    this.closing.forEach((action) => action());
  }
}

export async function draw() {
  current?.close();
  closeDialogs();
  const whole = location.pathname.slice(base.length);
  const match = /^\/c\/([^/]+)(\/.*)?$/.exec(whole);
  const inside = match ? match[2] || "/" : whole;
  const cluster = match ? decoded(match[1]) : state.cluster;
  const isKnown = !state.clusters.length || state.clusters.some((each) => each.name === cluster);
  if (isKnown) state.cluster = cluster;
  const root = document.getElementById("main");
  show(root);
  scrollTo(0, 0);
  for (const { expression, names, page, info } of routes) {
    const found = expression.exec(inside);
    if (!found) continue;
    const params = Object.fromEntries(names.map((name, index) => [name, decoded(found[index + 1])]));
    const context = new Context(root, params, Object.fromEntries(new URLSearchParams(location.search)));
    current = context;
    listener(info, params);
    if (!isKnown) return drawMissing(context, t("There is no cluster {name}.", { name: cluster }), [at`/`, state.cluster]);
    try {
      await page(context);
    } catch (problem) {
      if (current !== context || problem.name === "AbortError") return;
      if (problem.status === undefined) console.error(problem);
      if (problem.status === 404) drawMissing(context, problem.message, info.crumbs(params).at(-2)?.toReversed());
      else root.append(problemBanner(problem, button(t("Try again"), draw)));
    } finally {
      if (current === context) root.dataset.ready = location.pathname + location.search;
    }
    return;
  }
  current = null;
  listener(null, {});
  go(at`/`, { replace: true });
}

/** Instead of a page about something that does not exist; `place` is where to go on: [address, text]. */
function drawMissing(context, text, place) {
  context.close();
  const actions = place ? [h("a.btn", { href: place[0] }, place[1])] : [];
  show(context.root, h("section.card", null, emptyState({ symbol: "search", title: t("Not found"), text, actions })));
  context.root.dataset.ready = location.pathname + location.search;
}

/** A part of the address, as it is if it is encoded wrongly. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function start() {
  addEventListener("popstate", draw);
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href]");
    if (
      !link ||
      event.defaultPrevented ||
      event.button ||
      event.metaKey ||
      event.ctrlKey ||
      event.shiftKey ||
      link.download ||
      link.target
    )
      return;
    const address = new URL(link.href);
    if (address.origin !== location.origin || !address.pathname.startsWith(`${base}/c/`)) return;
    event.preventDefault();
    go(address.pathname + address.search);
  });
  return draw();
}
