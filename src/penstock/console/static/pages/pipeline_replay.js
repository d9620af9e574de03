// Replay: history of a topic sent to another one, after a dry run has said how many messages would go where.
import { get, path, post } from "../api.js";
import { banner, button, card, checkbox, field, input, problemBanner } from "../components.js";
import { confirm } from "../dialogs.js";
import { h, show } from "../dom.js";
import { count, parseTime } from "../format.js";
import { table } from "../grid.js";
import { note, state } from "../router.js";
import { plural, t } from "../translations.js";
import { follow } from "./pipeline_jobs.js";

export async function replay(page, body, scope, lake) {
  const known = await get(`${lake.scope}/tables`, page.signal);
  const topics = await get(path`/clusters/${state.cluster}/topics` + "?limit=500", page.signal);
  const names = (id, list) => h("datalist", { id }, list.map((name) => h("option", { value: name })));
  const source = input({ class: "mono", list: "replay-sources", value: page.query.source ?? "" });
  const target = input({ class: "mono", list: "replay-targets", value: page.query.target ?? "" });
  const since = input({ class: "mono", placeholder: "2026-03-01 00:00" });
  const until = input({ class: "mono", placeholder: "2026-03-02 00:00" });
  const first = input({ type: "number", min: 0 });
  const end = input({ type: "number", min: 0 });
  const partitions = input({ class: "mono", placeholder: "0, 1" });
  const keys = input({ class: "mono" });
  const tags = input({ class: "mono" });
  const ids = input({ class: "mono" });
  const keeps = checkbox(t("Keep the original timestamps; retention goes by them"), false);
  const progress = h("div");
  const answer = h("div.stack");
  const words = (box) =>
    box.value
      .split(",")
      .map((each) => each.trim())
      .filter(Boolean);
  const number = (box) => (box.value === "" ? null : Number(box.value));
  const moment = (box, label) => {
    if (!box.value.trim()) return null;
    const ms = parseTime(box.value);
    if (Number.isNaN(ms)) throw Object.assign(new Error(t("{text} is no time", { text: box.value })), { title: label, status: 0 });
    return ms;
  };
  const request = () => ({
    source: source.value.trim(),
    partitions: words(partitions).map(Number),
    first: number(first),
    end: number(end),
    since_ms: moment(since, t("Sent at or after (UTC)")),
    until_ms: moment(until, t("Sent before (UTC)")),
    keys: words(keys),
    tags: words(tags),
    biz_ids: words(ids),
    keeps_time: keeps.box.checked,
  });
  const tell = (problem) => {
    if (problem.name !== "AbortError") show(progress, problemBanner(problem));
  };
  const address = () => path`/clusters/${state.cluster}/topics/${target.value.trim()}/replays`;
  const rehearse = async () => {
    show(answer);
    try {
      const job = await post(address(), request());
      note({ job: job.id });
      await finish(job);
    } catch (problem) {
      tell(problem);
    }
  };
  const finish = async (job) => {
    const over = await follow(page, scope, job, progress);
    if (over?.state !== "done") return;
    const told = await get(`${scope}/jobs/${job.id}/result`, page.signal);
    if (job.kind === "replay") {
      show(
        answer,
        banner(
          "ok",
          plural(told.replay.rows, "{n} message was sent", "{n} messages were sent"),
          t("Run it again after the lake has grown: nothing is sent twice."),
        ),
      );
    } else show(answer, counted(told, job));
  };
  const counted = (told, job) => {
    const target = job.title.split(" → ").at(-1);
    return card({
      title: plural(told.replay.rows, "{n} message would be sent", "{n} messages would be sent"),
      count: job.title,
      tools: [
        told.replay.rows
          ? button(
              t("Send them"),
              () =>
                confirm({
                  title: t("Replay into {name}", { name: target }),
                  text: plural(
                    told.replay.rows,
                    "{n} message is sent to the topic, minus what this replay has sent before. It cannot be taken back.",
                    "{n} messages are sent to the topic, minus what this replay has sent before. They cannot be taken back.",
                  ),
                  action: t("Send them"),
                  submit: async () => {
                    const started = await post(path`/clusters/${state.cluster}/topics/${target}/replays/run`, { dry_run: job.id });
                    note({ job: started.id });
                    show(answer);
                    finish(started).catch(tell);
                  },
                }),
              { kind: "danger", symbol: "send", small: true },
            )
          : null,
      ],
      body: table(
        [
          { key: "partition", title: t("From partition"), cell: (each) => each.partition },
          { key: "target", title: t("To partition"), cell: (each) => each.target ?? t("by key") },
          { key: "rows", title: t("Messages"), num: true, cell: (each) => count(each.rows) },
        ],
        told.replay.partitions,
        { key: (each) => each.partition, label: t("What would be sent") },
      ),
    });
  };
  show(
    body,
    card({
      title: t("Replay history"),
      body: h(
        "div.stack",
        { style: { padding: "0 16px 16px" } },
        names("replay-sources", known.tables.filter((each) => each.kind === "topic").map((each) => each.name)),
        names("replay-targets", topics.items.map((each) => each.name)),
        h("p.muted", null, t("All conditions have to hold. Copies carry where they come from in the header penstock-replay-of.")),
        h("div.fields", null, field(t("From topic"), source), field(t("To topic"), target)),
        h("div.fields", null, field(t("Sent at or after (UTC)"), since), field(t("Sent before (UTC)"), until)),
        h("div.fields", null, field(t("From offset"), first), field(t("Up to offset, without it"), end)),
        h("div.fields", null, field(t("Partitions"), partitions), field(t("Keys"), keys, t("Several with commas; any of them matches."))),
        h("div.fields", null, field(t("Tags"), tags), field(t("Business ids"), ids)),
        h("div.row.wrap", null, keeps, h("span.grow"), button(t("Dry run"), rehearse, { kind: "primary", symbol: "play" })),
      ),
    }),
    progress,
    answer,
  );
  if (page.query.job) {
    const told = await get(`${scope}/jobs/${encodeURIComponent(page.query.job)}`, page.signal).catch(() => null);
    if (["dry_run", "replay"].includes(told?.job.kind)) {
      const [from, to] = told.job.title.split(" → ");
      source.value = from;
      target.value = to;
      await finish(told.job);
    }
  }
}
