// Jobs of the pipeline: how far one is, its log, ending it, and the list of all.
import { del, get } from "../api.js";
import { banner, button, card, emptyState, iconButton, status } from "../components.js";
import { act, drawer } from "../dialogs.js";
import { h, show } from "../dom.js";
import { count, duration, relative, time } from "../format.js";
import { table } from "../grid.js";
import { at, withQuery } from "../router.js";
import { t } from "../translations.js";

const STATES = {
  waiting: ["idle", "Waits"],
  running: ["warn", "Runs"],
  done: ["ok", "Done"],
  failed: ["error", "Failed"],
  cancelled: ["idle", "Ended"],
};
const LOOK_MS = 700;

export const isOver = (job) => !["waiting", "running"].includes(job.state);

export function jobStatus(job) {
  const [kind, text] = STATES[job.state] ?? ["idle", job.state];
  return status(kind, t(text));
}

const KINDS = () => ({
  query: [t("Query"), "sql"],
  report: [t("Report"), "reports"],
  dry_run: [t("Dry run"), "replay"],
  replay: [t("Replay"), "replay"],
});

/** Where the result of a job is shown. */
export const addressOf = (job) => withQuery(at`/pipeline/${KINDS()[job.kind][1]}`, { job: job.id });

/** Draws how far a job is into `holder` until it is over; gives it then, or null if the page is left. */
export async function follow(page, scope, job, holder, { ontell } = {}) {
  const address = `${scope}/jobs/${job.id}`;
  const bar = h("i");
  const words = h("span.grow", { "aria-live": "polite" });
  const end = button(t("Stop"), () => act(() => del(address), t("The job is ended")), { small: true });
  const log = button(t("Log"), () => showLog(scope, job), { small: true });
  show(
    holder,
    h(
      "div.stack.tight",
      { style: { padding: "12px 16px" } },
      h("div.row", null, words, log, end),
      h(
        "div.progress",
        { role: "progressbar", "aria-label": t("Progress of the job"), "aria-valuemin": 0, "aria-valuemax": 100 },
        bar,
      ),
    ),
  );
  let told = job;
  while (!page.signal.aborted) {
    const share = told.progress?.total ? told.progress.done / told.progress.total : 0;
    bar.style.width = `${Math.min(1, share) * 100}%`;
    bar.parentElement.setAttribute("aria-valuenow", Math.round(share * 100));
    show(words, jobStatus(told), " ", phase(told));
    await ontell?.(told);
    if (isOver(told)) {
      show(holder);
      if (told.state === "failed")
        show(holder, banner("error", t("The job failed"), told.problem, button(t("Log"), () => showLog(scope, told), { small: true })));
      if (told.state === "cancelled") show(holder, banner("", t("The job was ended before it was done"), ""));
      return told;
    }
    await new Promise((done) => setTimeout(done, LOOK_MS));
    if (!page.signal.aborted) told = (await get(address, page.signal)).job;
  }
  return null;
}

function phase(job) {
  if (job.state === "waiting") return t("Another job runs; this one is next in line.");
  const took = duration(Date.now() - job.began_ms);
  if (!job.progress) return t("Spark starts · {time}", { time: took });
  const { what, done, total } = job.progress;
  return `${what} ${count(done)}${total ? ` / ${count(total)}` : ""} · ${took}`;
}

async function showLog(scope, job) {
  const told = await act(() => get(`${scope}/jobs/${job.id}`));
  if (!told) return;
  drawer({
    title: t("Log"),
    body: told.log
      ? h("pre.payload", { tabindex: "0" }, told.log)
      : banner("", t("The log is empty, or the job is another user's."), ""),
  });
}

export async function jobs(page, body, scope) {
  const list = h("div");
  show(body, list);
  const refresh = async () => {
    const found = await get(`${scope}/jobs`, page.signal);
    show(
      list,
      card({
        title: t("Jobs"),
        count: count(found.length),
        body: table(
          [
            { key: "state", title: t("State"), cell: jobStatus },
            { key: "kind", title: t("Kind"), phone: false, cell: (each) => KINDS()[each.kind][0] },
            {
              key: "title",
              title: t("What"),
              clip: true,
              cell: (each) => h("a.mono", { href: addressOf(each), title: each.title }, each.title.slice(0, 120)),
            },
            { key: "user", title: t("By"), phone: false, cell: (each) => each.user },
            {
              key: "asked",
              title: t("Started"),
              phone: false,
              cell: (each) => h("span", { title: time(each.asked_ms) }, relative(each.asked_ms)),
            },
            {
              key: "took",
              title: t("Took"),
              num: true,
              phone: false,
              cell: (each) => (each.began_ms ? duration((each.ended_ms ?? Date.now()) - each.began_ms) : "–"),
            },
            {
              key: "act",
              title: "",
              class: "actions-cell",
              cell: (each) =>
                h(
                  "span.row.end",
                  null,
                  iconButton("audit", t("Log of {name}", { name: each.title.slice(0, 60) }), () => showLog(scope, each)),
                  isOver(each)
                    ? null
                    : iconButton("close", t("End {name}", { name: each.title.slice(0, 60) }), () =>
                        act(() => del(`${scope}/jobs/${each.id}`), t("The job is ended")).then(refresh),
                      ),
                ),
            },
          ],
          found,
          {
            key: (each) => each.id,
            label: t("Jobs"),
            empty: () =>
              emptyState({
                symbol: "pipeline",
                title: t("No jobs"),
                text: t("Queries, reports and replays run as jobs, one after the other. Their results are kept until the console stops."),
              }),
          },
        ),
      }),
    );
  };
  page.every(3000, refresh);
  await refresh();
}
