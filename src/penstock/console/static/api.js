// The REST API of the console, as pages call it: JSON in and out, the CSRF token on every change, problems as errors.
import { t } from "./translations.js";

const root = document.documentElement;
export const base = root.dataset.base ?? "";
const token = { csrf: root.dataset.csrf ?? "" };

/** What the API said instead of doing it: a title and, in `message`, what happened and what was not done. */
export class Problem extends Error {
  constructor(status, title, detail) {
    super(detail);
    this.status = status;
    this.title = title;
  }
}

export function setCsrf(value) {
  token.csrf = value;
}

/** A path with each {part} encoded: path`/topics/${name}`. */
export function path(strings, ...parts) {
  return strings.reduce((whole, text, index) => whole + encodeURIComponent(parts[index - 1]) + text);
}

export function query(values) {
  const known = Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(known.map(([name, value]) => [name, String(value)])).toString();
  return text ? `?${text}` : "";
}

/** The query of a long list, as grids ask for it. */
export const rows = ({ limit, offset, sort, descending }, text, more = {}) =>
  query({ first: offset, limit, sort, descending: sort ? descending : "", text, ...more });

async function call(method, address, body, signal) {
  let answer;
  const headers = { accept: "application/json" };
  if (method !== "GET") headers["x-csrf-token"] = token.csrf;
  if (body !== undefined) headers["content-type"] = "application/json";
  try {
    answer = await fetch(`${base}/api${address}`, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      credentials: "same-origin",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(
      0,
      t("The console does not answer"),
      t("It may be stopped or restarting. It is not known whether anything was done."),
    );
  }
  if (answer.status === 204) return null;
  const text = await answer.text();
  let told = null;
  try {
    told = text ? JSON.parse(text) : null;
  } catch {
    told = null;
  }
  if (answer.ok) return told;
  if (answer.status === 401) {
    location.assign(`${base}/login${query({ next: location.pathname + location.search })}`);
  }
  throw new Problem(answer.status, told?.title ?? t("The request failed"), detailOf(told, answer.status));
}

function detailOf(told, status) {
  if (typeof told?.detail === "string") return told.detail;
  if (Array.isArray(told?.detail))
    return told.detail.map((each) => `${(each.loc ?? []).slice(1).join(".")}: ${each.msg}`).join("; ");
  return t("The console answered with status {status}; nothing more is known.", { status });
}

export const get = (address, signal) => call("GET", address, undefined, signal);
export const post = (address, body = {}, signal) => call("POST", address, body, signal);
export const put = (address, body = {}) => call("PUT", address, body);
export const patch = (address, body = {}) => call("PATCH", address, body);
export const del = (address, body) => call("DELETE", address, body);
