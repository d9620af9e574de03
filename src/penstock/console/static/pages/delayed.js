// Delayed messages: what waits, by due time; find, cancel, deliver now, reschedule.
import { get, path, post, query } from "../api.js";
import { histogram } from "../charts.js";
import { button, card, emptyState, field, iconButton, input, pageHead } from "../components.js";
import { confirm, drawer, form, toast } from "../dialogs.js";
import { h, show } from "../dom.js";
import { clock, count, localInput, parseTime, relative, time } from "../format.js";
import { filterBox, Grid } from "../grid.js";
import { preview, recordBody } from "../record.js";
import { chooseTopic } from "./topic_choice.js";
import { at, bootstrap, note, state } from "../router.js";
import { plural, t } from "../translations.js";

export async function delayed(page) {
  await chooseTopic(page, {
    title: t("Delayed messages"),
    text: t("Messages wait at the broker until they are due. Choose a topic to see what waits in it."),
    address: (name) => at`/delayed/${name}`,
  });
}

const BINS = 60;
const SPANS = [600000, 3600000, 21600000, 86400000, 604800000, 2592000000, 31536000000];

export async function delayedTopic(page) {
  const name = page.params.topic;
  const scope = path`/clusters/${state.cluster}/topics/${name}`;
  let search = page.query.id ?? "";
  let from = page.query.due_from ? Number(page.query.due_from) : null;
  let until = page.query.due_until ? Number(page.query.due_until) : null;
  const chart = h("div");
  const total = h("span");
  const range = h("span.count");
  const bar = h("div.selection-bar", { hidden: true });
  const grid = new Grid({
    label: t("Delayed messages"),
    selectable: true,
    key: (each) => each.timer_id ?? `${each.partition} ${each.due_ms} ${each.key?.text ?? ""}`,
    load: async ({ limit, after }) => {
      if (search) {
        const one = await get(`${scope}/timers/found${query({ timer_id: search })}`, page.signal).catch((problem) => {
          if (problem.status === 404) return [];
          throw problem;
        });
        return { items: one, total: one.length };
      }
      const found = await get(
        `${scope}/timers${query({ due_from_ms: from, due_until_ms: until, limit, after })}`,
        page.signal,
      );
      return { items: found.rows, next: found.next };
    },
    onrow: (each) => open(each),
    onselect: (chosen) => drawBar(chosen),
    empty: () =>
      emptyState({
        symbol: "delayed",
        title: search ? t("Nothing waits under this id") : t("Nothing waits here"),
        text: t("It was delivered, cancelled, or never sent to this topic."),
        commands: search
          ? []
          : [`echo later | kcat -b ${bootstrap()} -t ${name} -P -H penstock-delay=5m -H penstock-timer-id=demo`],
      }),
    columns: [
      {
        key: "due_ms",
        title: t("Due"),
        cell: (each) =>
          h("span", null, relative(each.due_ms), " ", h("span.muted.hide-phone", null, time(each.due_ms))),
      },
      {
        key: "id",
        title: t("Timer id"),
        name: true,
        cell: (each) => each.timer_id ?? h("span.muted", null, t("none")),
      },
      { key: "key", title: t("Key"), phone: false, cell: (each) => preview(each.key, 40) },
      { key: "value", title: t("Value"), clip: true, phone: false, cell: (each) => preview(each.value) },
      { key: "partition", title: t("Partition"), num: true, phone: false, cell: (each) => each.partition },
      {
        key: "act",
        title: "",
        class: "actions-cell",
        cell: (each) =>
          each.timer_id
            ? h(
                "span.row.end",
                null,
                iconButton("bolt", t("Deliver now"), () => fire(scope, each, again)),
                iconButton("edit", t("Reschedule"), () => reschedule(scope, each, again)),
                iconButton("close", t("Cancel {id}", { id: each.timer_id }), () => cancel(scope, [each], again)),
              )
            : null,
      },
    ],
  });
  const again = () => Promise.all([grid.reload({ quiet: true }), refresh()]);
  const drawBar = (chosen) => {
    bar.hidden = !chosen.size;
    show(
      bar,
      h("span.grow", null, plural(chosen.size, "{n} message chosen", "{n} messages chosen")),
      button(
        t("Cancel them"),
        () =>
          cancel(
            scope,
            grid.rows.filter((each) => each.timer_id && chosen.has(each.timer_id)),
            () => {
              grid.clearSelection();
              return again();
            },
          ),
        { small: true, kind: "danger" },
      ),
    );
  };
  const refresh = async () => {
    const now = Date.now();
    const ask = (span) =>
      get(`${scope}/timers/histogram${query({ from_ms: now, bin_ms: span / BINS, bins: BINS })}`, page.signal);
    let told = await ask(SPANS[0]);
    // The first answer says how far the last one is: the second has them all.
    if (told.later) told = await ask(SPANS.find((span) => now + span > told.last_due_ms) ?? SPANS.at(-1));
    const spread = told.bin_ms * BINS;
    const waiting = told.overdue + told.later + told.counts.reduce((sum, each) => sum + each, 0);
    const columns = waiting
      ? told.counts.map((number, index) => ({
          from: told.from_ms + index * told.bin_ms,
          until: told.from_ms + (index + 1) * told.bin_ms,
          count: number,
        }))
      : [];
    show(
      total,
      [
        t("{n} wait", { n: count(waiting) + (told.is_bounded ? "+" : "") }),
        told.overdue ? `${t("{n} overdue", { n: count(told.overdue) })}` : "",
        told.later ? t("{n} later", { n: count(told.later) }) : "",
      ]
        .filter(Boolean)
        .join(" · "),
    );
    show(
      chart,
      columns.length
        ? histogram(
            columns.map((each) => ({
              ...each,
              label: spread > 86400000 ? time(each.from).slice(5, 16) : clock(each.from),
            })),
            {
              label: t("Waiting by due time"),
              colour: 4,
              describe: (each) => `${time(each.from)} – ${time(each.until).slice(11)}: ${count(each.count)}`,
              onpick: (each) => {
                from = each.from;
                until = each.until;
                note({ due_from: from, due_until: until });
                drawRange();
                grid.reload();
              },
            },
          )
        : h("div.empty.bare", null, h("p", null, t("Nothing waits in this topic."))),
    );
  };
  const drawRange = () =>
    show(
      range,
      from === null
        ? ""
        : [
            `${time(from)} – ${time(until)} `,
            h(
              "button.filter-chip",
              {
                type: "button",
                onclick: () => {
                  from = until = null;
                  note({ due_from: "", due_until: "" });
                  drawRange();
                  grid.reload();
                },
              },
              t("all times"),
            ),
          ],
    );
  const open = (each) =>
    drawer({
      title: each.timer_id ?? t("Delayed message"),
      body: recordBody({ ...each, offset: t("none yet"), timestamp_ms: null }, [
        [t("Due"), `${time(each.due_ms)} (${relative(each.due_ms)})`],
        [t("Timer id"), each.timer_id ?? "–"],
        each.schedule ? [t("Repeats"), each.schedule] : null,
      ]),
    });
  drawRange();
  show(
    page.root,
    pageHead({ title: name, isName: true, note: t("Delayed messages of this topic. Times are UTC.") }),
    card({ title: t("Waiting by due time"), count: total, body: chart }),
    card({
      title: t("Waiting"),
      count: range,
      tools: [
        filterBox(
          t("Find by timer id"),
          (text) => {
            search = text;
            note({ id: search });
            grid.reload();
          },
          search,
        ),
      ],
      body: [bar, grid.element],
    }),
  );
  page.every(5000, again);
  await Promise.all([grid.reload(), refresh()]);
}

function cancel(scope, list, again) {
  confirm({
    title:
      list.length === 1 ? t("Cancel {id}", { id: list[0].timer_id }) : t("Cancel {n} messages", { n: list.length }),
    text:
      list.length === 1
        ? t("It is never delivered. This cannot be undone.")
        : t("They are never delivered. This cannot be undone."),
    action: t("Cancel delivery"),
    submit: async () => {
      const done = await post(`${scope}/timers/cancellation`, {
        timer_ids: [...new Set(list.map((each) => each.timer_id))],
      });
      const failed = done.filter((each) => !each.is_done);
      const cancelled = list.length - failed.length;
      toast(
        failed.length ? "warn" : "ok",
        cancelled ? plural(cancelled, "{n} message is cancelled", "{n} messages are cancelled") : t("Nothing is cancelled"),
        failed.length ? failed[0].error : "",
      );
      await again();
    },
  });
}

function fire(scope, each, again) {
  confirm({
    title: t("Deliver {id} now", { id: each.timer_id }),
    text: t("It is delivered at once instead of {time}.", { time: time(each.due_ms) }),
    action: t("Deliver now"),
    danger: false,
    submit: async () => {
      await post(`${scope}/timers/firing`, { timer_id: each.timer_id });
      toast("ok", t("{id} is delivered", { id: each.timer_id }));
      await again();
    },
  });
}

function reschedule(scope, each, again) {
  const due = input({ type: "datetime-local", step: "1", value: localInput(each.due_ms), autofocus: true });
  form({
    title: t("Reschedule {id}", { id: each.timer_id }),
    action: t("Reschedule"),
    body: field(
      t("Due (UTC)"),
      due,
      t("Now {time}, {relative}.", { time: time(each.due_ms), relative: relative(each.due_ms) }),
    ),
    submit: async () => {
      await post(`${scope}/timers/rescheduling`, { timer_id: each.timer_id, due_ms: parseTime(due.value) });
      toast("ok", t("{id} is due {time}", { id: each.timer_id, time: time(parseTime(due.value)) }));
      await again();
    },
  });
}
