// Messages of a topic: browse from an offset or a time, follow live, search, look at one, produce, resend, download.
import { base, del, get, path, post, query } from "../api.js";
import {
  banner,
  button,
  card,
  checkbox,
  emptyState,
  field,
  iconButton,
  input,
  live,
  segments,
  select,
  textarea,
} from "../components.js";
import { act, drawer, form, toast } from "../dialogs.js";
import { h, show } from "../dom.js";
import { count, localInput, parseTime, time } from "../format.js";
import { Grid } from "../grid.js";
import { chooseTopic } from "./topic_choice.js";
import { icon } from "../icons.js";
import { base64, bytesOf, isBinary, isDecoded, preview, recordBody, save, textOf } from "../record.js";
import { at, bootstrap, note } from "../router.js";
import { t } from "../translations.js";
import { schemasDialog } from "./schemas.js";

const FROM = () => [
  ["latest", t("Newest")],
  ["earliest", t("Oldest")],
  ["offset", t("Offset")],
  ["time", t("Time")],
];
const FIELDS = () => [
  ["text", t("Value")],
  ["key", t("Key")],
  ["biz_id", t("Business id")],
  ["tag", t("Tag")],
  ["header", t("Header")],
  ["json", t("JSON path")],
];
const LIVE_ROWS = 500;
const ENDS = {
  full: "stopped: enough was found",
  bounded: "stopped: the limit of time or of messages is reached",
  cancelled: "stopped",
  failed: "failed",
};

/** The page without a topic: choose one. */
export async function messages(page) {
  const more = page.query.produce ? "?produce=1" : "";
  await chooseTopic(page, {
    title: t("Messages"),
    text: t("Choose a topic to browse, search, follow or produce."),
    address: (name) => at`/topics/${name}/messages` + more,
  });
}

/** The tab of a topic. */
export async function messagesPanel(page, body, scope, topic) {
  const wanted = page.query;
  const choice = {
    partition: wanted.partition ?? "",
    from: wanted.from ?? (wanted.offset ? "offset" : wanted.time ? "time" : "latest"),
    offset: wanted.offset ?? "",
    time: wanted.time ?? "",
    field: wanted.field ?? "text",
    text: wanted.text ?? "",
  };
  let source = null;
  let search = null;
  /** What an empty table means: browse, live, searching, searched. */
  let mode = "browse";

  const known = Array.from({ length: Math.min(topic.partition_count, 2000) }, (_, index) => String(index));
  // The address may have one that is not in the list, or that the topic does not have, which the API then says.
  if (/^\d+$/.test(choice.partition) && !known.includes(choice.partition)) known.push(choice.partition);
  const partition = select(
    [["", t("All partitions")], ...known.map((index) => [index, t("Partition {n}", { n: index })])],
    choice.partition,
    { "aria-label": t("Partition"), class: "auto" },
  );
  const offset = input({
    type: "number",
    min: 0,
    value: choice.offset,
    placeholder: t("Offset"),
    "aria-label": t("Offset"),
    class: "auto",
    style: { width: "130px" },
  });
  const moment = input({
    type: "datetime-local",
    step: "1",
    value: Number.isNaN(parseTime(choice.time)) ? localInput(Date.now() - 3600000) : choice.time,
    "aria-label": t("Time (UTC)"),
    class: "auto",
  });
  const where = segments(
    FROM(),
    choice.from,
    (key) => {
      choice.from = key;
      drawFrom();
      if (key === "latest" || key === "earliest") browse();
    },
    t("Start from"),
  );
  const kind = select(FIELDS(), choice.field, { "aria-label": t("Search in"), class: "auto" });
  const detail = input({
    placeholder: t("$.order.id or header name"),
    "aria-label": t("JSON path or header name"),
    class: "mono auto",
    style: { width: "180px" },
    value: wanted.detail ?? "",
  });
  const text = input({
    type: "search",
    placeholder: t("Search in all partitions"),
    "aria-label": t("Search"),
    "data-search": true,
    value: choice.text,
  });
  const liveButton = button(t("Live"), () => (source ? stopLive() : follow()), { symbol: "play" });
  const progress = h("div", { "aria-live": "polite" });
  const more = h("div");

  const drawFrom = () => {
    offset.hidden = choice.from !== "offset";
    moment.hidden = choice.from !== "time";
    detail.hidden = kind.value !== "json" && kind.value !== "header";
  };
  const remember = (extra = {}) =>
    note({
      partition: partition.value,
      from: choice.from === "latest" ? "" : choice.from,
      offset: choice.from === "offset" ? offset.value : "",
      time: choice.from === "time" ? moment.value : "",
      field: "",
      text: "",
      detail: "",
      produce: "",
      open: "",
      ...extra,
    });

  const position = () => ({
    partition: partition.value,
    at: choice.from,
    value: choice.from === "offset" ? Math.max(0, Number(offset.value)) : choice.from === "time" ? parseTime(moment.value) : "",
  });

  const grid = new Grid({
    label: t("Messages"),
    key: (each) => `${each.partition}-${each.offset}`,
    page: 50,
    onrow: (each) => open(each),
    load: async ({ limit, after }) => {
      const found = await get(`${scope}/messages${query({ ...position(), limit, after })}`, page.signal);
      return { items: found.rows, next: found.next };
    },
    empty: () => {
      if (mode === "live") {
        const text = t("They appear here as they arrive.");
        return emptyState({ symbol: "messages", title: t("No message since you pressed Live"), text });
      }
      if (mode === "searching") return emptyState({ symbol: "search", title: t("No message matches so far") });
      if (mode === "searched") {
        const text = t("Change the words, or where they are searched.");
        return emptyState({ symbol: "search", title: t("No message matches"), text });
      }
      if (choice.from === "offset" && Number(offset.value) > 0) {
        const title = t("No message at offset {offset} or after it", { offset: count(Number(offset.value)) });
        return emptyState({ symbol: "messages", title, text: t("Choose Newest to see where the partitions end.") });
      }
      if (choice.from === "time") {
        const title = t("No message since {time}", { time: time(parseTime(moment.value)) });
        return emptyState({ symbol: "messages", title, text: t("Times are UTC. Choose an earlier one.") });
      }
      return emptyState({
        symbol: "messages",
        title: t("No messages here"),
        text: t("Nothing was written yet, or retention has deleted it."),
        commands: [`echo hello | kcat -b ${bootstrap()} -t ${topic.name} -P`],
        actions: [button(t("Produce"), () => produce(), { kind: "primary", symbol: "send" })],
      });
    },
    decorate: (element, each) => element.classList.toggle("masked", each.is_masked),
    columns: [
      {
        key: "timestamp_ms",
        title: t("Time"),
        cell: (each) => h("span.nowrap", null, time(each.timestamp_ms)),
        width: "150px",
      },
      {
        key: "partition",
        title: t("Partition"),
        num: true,
        phone: false,
        cell: (each) => each.partition,
        width: "80px",
      },
      {
        key: "offset",
        title: t("Offset"),
        num: true,
        cell: (each) =>
          h(
            "button.cell-button",
            {
              type: "button",
              onclick: () => open(each),
              "aria-label": t("Open message {offset} of partition {n}", { offset: each.offset, n: each.partition }),
            },
            count(each.offset),
          ),
        width: "110px",
      },
      { key: "key", title: t("Key"), phone: false, cell: (each) => preview(each.key, 40), width: "160px" },
      {
        key: "value",
        title: t("Value"),
        clip: true,
        cell: (each) =>
          each.is_archived
            ? h("span", null, h("span.tag", { title: t("From the lake") }, t("archived")), " ", preview(each.value))
            : preview(each.value),
      },
      {
        key: "headers",
        title: t("Headers"),
        num: true,
        phone: false,
        cell: (each) => count(each.headers.length),
        width: "80px",
      },
    ],
  });

  const browse = async () => {
    stopLive();
    search?.stop();
    if (choice.from === "time" && Number.isNaN(parseTime(moment.value))) {
      moment.focus();
      return;
    }
    mode = "browse";
    show(progress);
    remember();
    await grid.reload();
  };

  const follow = () => {
    search?.stop();
    mode = "live";
    const rows = [];
    let dropped = 0;
    grid.setRows(rows);
    show(liveButton, icon("pause"), t("Stop"));
    source = new EventSource(`${base}/api${scope}/tail${query({ partition: partition.value })}`);
    const told = () =>
      show(
        progress,
        h(
          "div.row",
          { style: { padding: "8px 16px" } },
          live(t("Live: {n} messages", { n: count(rows.length) })),
          dropped ? h("span.muted", null, t("{n} left out: messages arrive faster than they are shown", { n: count(dropped) })) : null,
        ),
      );
    told();
    source.onmessage = (event) => {
      const batch = JSON.parse(event.data);
      dropped += batch.skipped;
      rows.unshift(...batch.rows.reverse());
      rows.length = Math.min(rows.length, LIVE_ROWS);
      grid.setRows([...rows]);
      told();
    };
    source.onerror = () => {
      if (source?.readyState === EventSource.CLOSED) {
        stopLive();
        show(progress, banner("warn", t("The live view has ended"), t("Press Live to continue from now.")));
      }
    };
  };
  const stopLive = () => {
    source?.close();
    source = null;
    show(liveButton, icon("play"), t("Live"));
  };
  page.onclose(() => {
    source?.close();
    search?.stop();
  });

  const find = async () => {
    stopLive();
    search?.stop();
    if (!text.value.trim() && detail.hidden) return browse();
    remember({ field: kind.value, text: text.value, detail: detail.hidden ? "" : detail.value });
    mode = "searching";
    search = startSearch({
      scope,
      grid,
      progress,
      onend: () => {
        mode = "searched";
        grid.draw();
      },
      request: {
        ...wantedBy(kind.value, text.value, detail.value),
        partitions: partition.value === "" ? [] : [Number(partition.value)],
        since_ms: choice.from === "time" ? parseTime(moment.value) : null,
      },
    });
    return undefined;
  };

  const open = async (each, isRaw = false) => {
    note({ open: `${each.partition}-${each.offset}` });
    const asStored = () => get(`${scope}/messages/${each.partition}/${each.offset}${query({ raw: true })}`);
    const whole = isRaw
      ? ((await act(asStored)) ?? each)
      : each.value?.is_cut
        ? ((await act(() => get(`${scope}/messages/${each.partition}/${each.offset}`))) ?? each)
        : each;
    const isJson = isDecoded(whole.key) || isDecoded(whole.value);
    const opened = drawer({
      title: t("Message {offset} of partition {n}", { offset: count(each.offset), n: each.partition }),
      body: recordBody(whole, [
        whole.is_archived ? [t("From"), t("the lake; brokers have deleted it")] : null,
        [t("Link"), h("code.break", null, `${location.pathname}?open=${each.partition}-${each.offset}`)],
      ]),
      footer: [
        isJson || isRaw
          ? button(isRaw ? t("Decoded") : t("As stored"), () => {
              opened.close();
              return open(each, !isRaw);
            })
          : null,
        button(
          t("Download"),
          () =>
            save(
              `${topic.name}-${each.partition}-${each.offset}${whole.value?.format === "json" ? ".json" : isBinary(whole.value) ? ".bin" : ".txt"}`,
              bytesOf(whole.value) ?? "",
            ),
          { symbol: "download" },
        ),
        button(
          t("Edit and send again"),
          async () => {
            // What is sent again is what is stored: a decoded part is not.
            const like = isJson || isBinary(whole.key) || isBinary(whole.value) ? await act(asStored) : whole;
            if (!like) return;
            opened.close();
            produce(like);
          },
          {
            symbol: "edit",
            disabled: whole.is_masked,
            title: whole.is_masked ? t("Parts of this message are masked for your role.") : undefined,
          },
        ),
        button(t("Send again"), () => resend(scope, topic, whole), { kind: "primary", symbol: "send" }),
      ].filter(Boolean),
      onclose: () => note({ open: "" }),
    });
  };

  const produce = (like) => produceDialog(scope, topic, like, () => browse());

  for (const control of [partition]) control.addEventListener("change", browse);
  for (const control of [offset, moment]) control.addEventListener("change", browse);
  kind.addEventListener("change", drawFrom);
  drawFrom();
  show(
    body,
    card({
      label: t("Messages"),
      body: h(
        "div",
        null,
        h(
          "div.card-head",
          null,
          h("div.row.wrap", null, where, offset, moment, partition),
          h(
            "div.tools",
            null,
            liveButton,
            button(t("Schemas"), () => schemasDialog(scope, topic, browse)),
            button(t("Download"), () => downloadDialog(scope, topic), { symbol: "download" }),
          ),
        ),
        h(
          "form.row.wrap",
          {
            style: { padding: "0 16px 12px" },
            onsubmit: (event) => {
              event.preventDefault();
              find();
            },
          },
          kind,
          detail,
          h("div.with-icon.grow", { style: { "min-width": "110px" } }, icon("search"), text),
          h("button.btn", { type: "submit" }, t("Search")),
        ),
        progress,
        grid.element,
        more,
      ),
    }),
  );
  if (wanted.produce) {
    note({ produce: "" });
    produce();
  }
  if (choice.text) await find();
  else await grid.reload();
  const link = /^(\d+)-(\d+)$/.exec(wanted.open ?? "");
  if (link) {
    const one = await act(() => get(`${scope}/messages/${link[1]}/${link[2]}`));
    if (one) open(one);
  }
}

function wantedBy(kind, text, name) {
  if (kind === "header") return { header: name, header_value: text || null };
  if (kind === "json") return { json_path: name, json_value: text || null };
  return { [kind]: text };
}

/** Searches in the background of the console; hits come as they are found, and it can be stopped. */
function startSearch({ scope, grid, progress, request, onend }) {
  let isOver = false;
  let id = null;
  const bar = h("i");
  const words = h("span.grow", null, t("Searching…"));
  const cancel = button(t("Stop"), () => stop(true), { small: true });
  show(
    progress,
    h(
      "div.stack.tight",
      { style: { padding: "4px 16px 12px" } },
      h("div.row", null, words, cancel),
      h(
        "div.progress",
        { role: "progressbar", "aria-label": t("Searching…"), "aria-valuemin": 0, "aria-valuemax": 100 },
        bar,
      ),
    ),
  );
  grid.setRows([]);
  const stop = async (isAsked) => {
    if (isOver) return;
    isOver = true;
    if (id) await act(() => del(path`/searches/${id}`));
    if (isAsked) finish(t("Stopped. The hits so far stay."));
  };
  const say = (text) => show(words, text);
  const finish = (text) => {
    isOver = true;
    bar.style.width = "100%";
    say(text);
    cancel.remove();
    onend();
  };
  const run = async () => {
    try {
      let told = await post(`${scope}/searches`, request);
      id = told.id;
      const found = [];
      while (!isOver) {
        found.push(...told.rows);
        if (told.rows.length || !found.length) grid.setRows([...found]);
        const share = told.total ? Math.min(1, told.scanned / told.total) : 1;
        bar.style.width = `${share * 100}%`;
        bar.parentElement.setAttribute("aria-valuenow", Math.round(share * 100));
        const words = [
          t("{hits} found in {read} of {total} messages", {
            hits: count(told.hits),
            read: count(Math.min(told.scanned, told.total)),
            total: count(told.total),
          }),
          told.archived ? t("{n} of them in the lake", { n: count(told.archived) }) : "",
        ]
          .filter(Boolean)
          .join(" · ");
        say(words);
        if (told.state !== "running" && found.length >= told.hits) {
          finish([words, t(ENDS[told.state] ?? ""), told.problem].filter(Boolean).join(" · "));
          return;
        }
        await new Promise((done) => setTimeout(done, told.state === "running" ? 300 : 0));
        if (!isOver) told = await get(`${path`/searches/${id}`}${query({ after: found.length })}`);
      }
    } catch (problem) {
      isOver = true;
      show(progress, banner("error", problem.title, problem.message));
    }
  };
  run();
  return { stop };
}

function headerRows(list) {
  const holder = h("div.stack.tight");
  const add = (each = { name: "", value: { text: "" } }) => {
    const line = h(
      "div.row",
      null,
      input({ value: each.name, placeholder: t("Name"), "aria-label": t("Header name"), class: "mono" }),
      input({
        value: textOf(each.value) ?? "",
        placeholder: t("Value"),
        "aria-label": t("Header value"),
        class: "mono",
      }),
      iconButton("close", t("Remove header"), () => line.remove()),
    );
    holder.append(line);
  };
  list.forEach(add);
  return {
    element: h(
      "div.field",
      null,
      h("span.label", null, t("Headers")),
      holder,
      h(
        "div.row.wrap",
        null,
        button(t("Add header"), () => add(), { small: true, symbol: "plus" }),
        ["penstock-delay", "penstock-tags", "penstock-biz-id"].map((name) =>
          h(
            "button.filter-chip",
            { type: "button", onclick: () => add({ name, value: { text: name === "penstock-delay" ? "30s" : "" } }) },
            name,
          ),
        ),
      ),
    ),
    values: () =>
      [...holder.children]
        .map((line) => [...line.querySelectorAll("input")].map((box) => box.value))
        .filter(([name]) => name)
        .map(([name, value]) => ({ name, value: { text: value } })),
  };
}

export function produceDialog(scope, topic, like, ondone) {
  const key = input({ value: like ? (textOf(like.key) ?? "") : "", class: "mono" });
  const noKey = checkbox(t("without a key"), like ? like.key === null : true, (isOn) => {
    key.disabled = isOn;
  });
  key.disabled = noKey.box.checked;
  const value = textarea({ rows: 8, autofocus: true }, like ? (textOf(like.value) ?? "") : "");
  // Binary parts cannot be typed; they are sent as they are.
  const fixed = { key: isBinary(like?.key) ? like.key : null, value: isBinary(like?.value) ? like.value : null };
  key.readOnly = Boolean(fixed.key);
  value.readOnly = Boolean(fixed.value);
  const asIs = t("Binary: it is sent as it is.");
  const content = (part, text) => (part ? { base64: base64(bytesOf(part)) } : { text });
  const tombstone = checkbox(t("null: a tombstone"), like ? like.value === null : false, (isOn) => {
    value.disabled = isOn;
  });
  const partition = select(
    [
      ["", t("by key")],
      ...Array.from({ length: Math.min(topic.partition_count, 2000) }, (_, index) => [String(index), String(index)]),
    ],
    "",
  );
  const headers = headerRows(like?.headers ?? []);
  form({
    title: t("Produce to {name}", { name: topic.name }),
    action: t("Produce"),
    body: [
      h("div.fields", null, h("div.stack.tight", null, field(t("Key"), key, fixed.key ? asIs : undefined), noKey), field(t("Partition"), partition)),
      h("div.stack.tight", null, field(t("Value"), value, fixed.value ? asIs : undefined), tombstone),
      headers.element,
    ],
    submit: async () => {
      const done = await post(`${scope}/messages`, {
        key: noKey.box.checked ? null : content(fixed.key, key.value),
        value: tombstone.box.checked ? null : content(fixed.value, value.value),
        headers: headers.values(),
        partition: partition.value === "" ? null : Number(partition.value),
      });
      toast("ok", t("Produced to partition {n} at offset {offset}", { n: done.partition, offset: count(done.offset) }));
      ondone?.();
    },
  });
}

function resend(scope, topic, record) {
  return act(
    () => post(`${scope}/messages/resend`, { messages: [{ partition: record.partition, offset: record.offset }] }),
    ([done]) => t("Sent again: partition {n}, offset {offset}", { n: done.partition, offset: count(done.offset) }),
  );
}

function downloadDialog(scope, topic) {
  const limit = input({ type: "number", min: 1, value: "10000" });
  form({
    title: t("Download messages of {name}", { name: topic.name }),
    action: t("Download"),
    body: [field(t("At most"), limit, t("Oldest first, a line of JSON each."))],
    submit: async () => {
      const link = h("a", {
        href: `${base}/api${scope}/download${query({ at: "earliest", limit: limit.value })}`,
        download: "",
      });
      document.body.append(link);
      link.click();
      link.remove();
      toast("ok", t("The download has begun"));
    },
  });
}
