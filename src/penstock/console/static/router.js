// Addresses. Every page, tab and selection has one; going somewhere never reloads the console.
import { base, query } from "./api.js";
import { closeDialogs } from "./dialogs.js";
import { h, show } from "./dom.js";
import { problemBanner } from "./components.js";

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
          // The next turn tries again; the shell says when the console does not answer.
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
  if (match) state.cluster = decodeURIComponent(match[1]);
  const root = document.getElementById("main");
  show(root);
  scrollTo(0, 0);
  for (const { expression, names, page, info } of routes) {
    const found = expression.exec(inside);
    if (!found) continue;
    const params = Object.fromEntries(names.map((name, index) => [name, decodeURIComponent(found[index + 1])]));
    const context = new Context(root, params, Object.fromEntries(new URLSearchParams(location.search)));
    current = context;
    listener(info, params);
    try {
      await page(context);
    } catch (problem) {
      if (current !== context || problem.name === "AbortError") return;
      if (problem.status === undefined) console.error(problem);
      root.append(problemBanner(problem, h("button.btn", { onclick: draw }, "↻")));
    } finally {
      if (current === context) root.dataset.ready = location.pathname + location.search;
    }
    return;
  }
  current = null;
  listener(null, {});
  go(at`/`, { replace: true });
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
