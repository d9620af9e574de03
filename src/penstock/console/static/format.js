// Numbers, sizes, durations and times as people read them. Times are UTC everywhere, as the page head says.
import { language, t } from "./translations.js";

export function count(value) {
  return value === null || value === undefined ? "–" : new Intl.NumberFormat(language()).format(value);
}

/** A number in two parts, for a tile: ["48.2", "k"]. */
export function compact(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return ["–", ""];
  const size = Math.abs(value);
  for (const [limit, unit] of [
    [1e12, "T"],
    [1e9, "B"],
    [1e6, "M"],
    [1e3, "k"],
  ]) {
    if (size >= limit * 0.9995) return [digits(value / limit), unit];
  }
  return [Number.isInteger(value) ? String(value) : digits(value), ""];
}

export const short = (value) => compact(value).join(compact(value)[1] ? " " : "");

function digits(value) {
  const size = Math.abs(value);
  return value.toFixed(size >= 100 ? 0 : 1).replace(/\.0$/, "");
}

export function bytes(value) {
  return value === null || value === undefined ? "–" : byteParts(value).join(" ");
}

export function byteParts(value) {
  if (value === null || value === undefined) return ["–", ""];
  let size = value;
  for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
    if (Math.abs(size) < 999.5 || unit === "TB") return [unit === "B" ? String(Math.round(size)) : digits(size), unit];
    size /= 1000;
  }
  return ["–", ""];
}

/** A share of a whole in percent, as a text without the sign: something is never 0. */
export const percent = (share) => (share > 0 && share < 0.01 ? "< 1" : String(Math.round(share * 100)));

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 0) return t("unlimited");
  if (ms < 1000) return `${Math.round(ms)} ms`;
  for (const [unit, length] of [
    ["d", 86400000],
    ["h", 3600000],
    ["min", 60000],
    ["s", 1000],
  ]) {
    if (ms >= length) return `${digits(ms / length)} ${t(unit)}`;
  }
  return "–";
}

/** 2026-11-18 14:03:22.123 */
export function time(ms, { seconds = true, millis = false } = {}) {
  if (ms === null || ms === undefined || ms < 0 || ms > 8.64e15) return "–";
  const text = new Date(ms).toISOString().replace("T", " ").replace("Z", "");
  return millis ? text : text.slice(0, seconds ? 19 : 16);
}

export const clock = (ms) => new Date(ms).toISOString().slice(11, 16);
export const clockSeconds = (ms) => new Date(ms).toISOString().slice(11, 19);

/** "in 4 min", "3 h ago" */
export function relative(ms, now = Date.now()) {
  if (ms === null || ms === undefined) return "–";
  const away = ms - now;
  if (Math.abs(away) < 1000) return t("now");
  return away > 0 ? t("in {time}", { time: duration(away) }) : t("{time} ago", { time: duration(-away) });
}

/** What a person typed as a time: ISO, with UTC understood, or milliseconds. NaN if it is none. */
export function parseTime(text) {
  const trimmed = text.trim();
  if (/^\d{11,}$/.test(trimmed)) return Number(trimmed);
  const spelled = trimmed.replace(" ", "T");
  return Date.parse(
    /([zZ]|[+-]\d\d:?\d\d)$/.test(spelled) ? spelled : `${spelled}${spelled.includes("T") ? "" : "T00:00"}Z`,
  );
}

/** For <input type="datetime-local">, in UTC. */
export const localInput = (ms) => new Date(ms).toISOString().slice(0, 19);
