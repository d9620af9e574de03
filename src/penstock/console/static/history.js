// Points for charts, from the console's samples.
import { get, path } from "./api.js";
import { state } from "./router.js";

const RECENT_MS = 900000;

/** Series of the cluster as [{name, points: [[ms, value], ...]}]: `in`, `lag`, `topic.NAME`, `group.NAME` and so on. */
export async function samples(names, rangeMs = RECENT_MS, signal = undefined) {
  if (!names.length) return [];
  const wanted = new URLSearchParams(names.map((name) => ["series", name]));
  if (rangeMs > RECENT_MS) wanted.set("from_ms", String(Date.now() - rangeMs));
  const found = await get(`${path`/clusters/${state.cluster}/samples`}?${wanted}`, signal);
  return found.map((each) => ({ name: each.name, points: each.times_ms.map((at, index) => [at, each.values[index]]) }));
}
