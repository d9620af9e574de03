// Points for charts: the console's samples, and, for numbers it keeps no history of, what this window has seen.
import { get, path } from "./api.js";
import { state } from "./router.js";

const MOST = 360;
const RECENT_MS = 900000;
const seen = new Map();

export function remember(name, value, at = Date.now()) {
  if (value === null || value === undefined) return;
  const key = `${state.cluster} ${name}`;
  const points = seen.get(key) ?? [];
  if (points.length && at - points.at(-1)[0] < 900) return;
  points.push([at, value]);
  if (points.length > MOST) points.shift();
  seen.set(key, points);
}

export function rememberOverview(now) {
  const at = now.summary.at_ms || Date.now();
  remember("groups", now.summary.groups, at);
  remember("brokers", now.summary.brokers, at);
  remember("offline", now.offline, at);
  remember(
    "size",
    now.brokers.flatMap((each) => each.disks).reduce((sum, each) => sum + each.used_bytes, 0),
    at,
  );
}

/** What this window has seen of a number. */
export const glimpsed = (name) => (seen.get(`${state.cluster} ${name}`) ?? []).map(([, value]) => value);

/** Series of the cluster as [{name, points: [[ms, value], ...]}]: `in`, `lag`, `topic.NAME`, `group.NAME`. */
export async function samples(names, rangeMs = RECENT_MS, signal = undefined) {
  if (!names.length) return [];
  const wanted = new URLSearchParams(names.map((name) => ["series", name]));
  if (rangeMs > RECENT_MS) wanted.set("from_ms", String(Date.now() - rangeMs));
  const found = await get(`${path`/clusters/${state.cluster}/samples`}?${wanted}`, signal);
  return found.map((each) => ({ name: each.name, points: each.times_ms.map((at, index) => [at, each.values[index]]) }));
}
