// Dead letters: by group and by error; look at one with its stack, edit, resend one, some or all, purge.
import { get, path, post, query } from "../api.js";
import { button, card, chips, emptyState, pageHead, status, textarea, field, input } from "../components.js";
import { confirm, confirmTyped, drawer, form, toast } from "../dialogs.js";
import { h, show } from "../dom.js";
import { count, relative, time } from "../format.js";
import { filterBox, Grid, table } from "../grid.js";
import { isBinary, isDecoded, preview, recordBody, textOf } from "../record.js";
import { at, go, note, state } from "../router.js";
import { plural, t } from "../translations.js";

export async function deadLetters(page) {
  const found = await get(path`/clusters/${state.cluster}/dead-letters`, page.signal);
  const rows = found;
  show(
    page.root,
    pageHead({ title: t("Dead letters"), note: t("Messages that a group has given up after all its retries.") }),
    card({
      title: t("By group"),
      count: count(rows.length),
      body: table(
        [
          {
            key: "group",
            title: t("Group"),
            name: true,
            cell: (each) => h("a", { href: at`/dead-letters/${each.group}` }, each.group),
          },
          { key: "messages", title: t("Kept"), num: true, cell: (each) => count(each.messages) },
          {
            key: "topic",
            title: t("Kept in"),
            phone: false,
            cell: (each) => h("a.mono", { href: at`/topics/${each.topic}` }, each.topic),
          },
        ],
        rows,
        {
          key: (each) => each.group,
          onrow: (each) => go(at`/dead-letters/${each.group}`),
          empty: () =>
            emptyState({
              symbol: "dead",
              title: t("No dead letters"),
              text: t(
                "A message whose handler fails is retried with back-off; after the last attempt it comes here, with the error.",
              ),
            }),
        },
      ),
    }),
  );
}

/** Whether what is shown is what is stored, and a person can type it. */
const isEditable = ({ key, value, is_masked: isMasked }) =>
  !isMasked && [key, value].every((part) => !part || !(isBinary(part) || isDecoded(part) || part.is_cut));

const STATES = { waiting: ["warn", "Waiting"], resent: ["ok", "Resent"], purged: ["idle", "Purged"] };

export async function deadLettersOf(page) {
  const name = page.params.group;
  const scope = path`/clusters/${state.cluster}/dead-letters/${name}`;
  let kind = page.query.state ?? "waiting";
  let error = page.query.error ?? "";
  const bar = h("div.selection-bar", { hidden: true });
  const errors = h("div");
  const grid = new Grid({
    label: t("Dead letters"),
    selectable: true,
    key: (each) => each.id,
    load: async ({ limit, after }) => {
      const found = await get(`${scope}${query({ state: kind, error, limit, after })}`, page.signal);
      return { items: found.rows, next: found.next };
    },
    onrow: (each) => open(each),
    onselect: (chosen) => drawBar(chosen),
    empty: () =>
      emptyState({
        symbol: "dead",
        title: t("No dead letters here"),
        text: t("Nothing matches, or the group has no dead letters."),
      }),
    columns: [
      {
        key: "died_ms",
        title: t("Given up"),
        cell: (each) =>
          h(
            "button.cell-button",
            { type: "button", title: time(each.died_ms), onclick: () => open(each) },
            relative(each.died_ms),
          ),
      },
      {
        key: "state",
        title: t("State"),
        phone: false,
        cell: (each) => status(STATES[each.state]?.[0] ?? "idle", t(STATES[each.state]?.[1] ?? each.state)),
      },
      { key: "error", title: t("Error"), clip: true, cell: (each) => each.error ?? "" },
      { key: "topic", title: t("From"), phone: false, cell: (each) => h("span.mono", null, each.origin_topic ?? "–") },
      { key: "key", title: t("Key"), phone: false, cell: (each) => preview(each.message.key, 32) },
      { key: "attempts", title: t("Attempts"), num: true, phone: false, cell: (each) => count(each.attempts) },
    ],
  });
  const again = async () => {
    await Promise.all([grid.reload({ quiet: true }), refresh()]);
    grid.clearSelection();
  };
  const settle = (what, body, many) =>
    post(`${scope}/${what}`, body).then((done) => {
      const failed = done.filter((each) => !each.is_done);
      toast(
        failed.length ? "warn" : "ok",
        many(done.length - failed.length),
        failed.length ? t("{n} failed: {why}", { n: failed.length, why: `${failed[0].item}: ${failed[0].error}` }) : "",
      );
      return again();
    });
  const resend = (body) =>
    settle("resend", body, (n) =>
      plural(n, "{n} letter is resent to its group", "{n} letters are resent to their group"),
    );
  const purge = (ids) =>
    confirm({
      title: plural(ids.length, "Purge {n} letter", "Purge {n} letters"),
      text: t("They are deleted for good."),
      action: t("Purge"),
      submit: () =>
        settle("purge", { ids, confirm: name }, (n) => plural(n, "{n} letter is purged", "{n} letters are purged")),
    });
  const drawBar = (chosen) => {
    bar.hidden = !chosen.size;
    const ids = [...chosen];
    show(
      bar,
      h("span.grow", null, plural(chosen.size, "{n} letter chosen", "{n} letters chosen")),
      button(t("Resend"), () => resend({ ids }), { small: true, symbol: "send" }),
      button(t("Purge"), () => purge(ids), { small: true, kind: "danger" }),
    );
  };
  const refresh = async () => {
    const list = await get(`${scope}/errors`, page.signal);
    show(
      errors,
      list.length
        ? card({
            title: t("By error"),
            body: table(
              [
                { key: "error", title: t("Error"), clip: true, cell: (each) => each.error },
                { key: "count", title: t("Letters"), num: true, cell: (each) => count(each.count) },
                {
                  key: "last",
                  title: t("Last"),
                  phone: false,
                  cell: (each) => (each.last_ms ? relative(each.last_ms) : "–"),
                },
                {
                  key: "act",
                  title: "",
                  class: "actions-cell",
                  cell: (each) =>
                    button(
                      t("Show"),
                      () => {
                        error = each.error;
                        note({ error });
                        grid.reload();
                      },
                      { small: true },
                    ),
                },
              ],
              list,
              { key: (each) => each.error },
            ),
          })
        : null,
    );
  };
  const open = (each) => {
    const opened = drawer({
      title: t("Dead letter {id}", { id: each.id }),
      body: [
        h(
          "section",
          null,
          h("div.section-title", null, t("What failed")),
          h("pre.payload", { tabindex: "0" }, each.error || "–"),
        ),
        ...recordBody(each.message, [
          [
            t("From"),
            h("code", null, `${each.origin_topic ?? "–"} ${each.origin_partition ?? ""} @ ${each.origin_offset ?? ""}`),
          ],
          [t("Attempts"), each.attempts],
          [t("Given up"), time(each.died_ms)],
        ]),
      ],
      footer:
        each.state === "waiting"
          ? [
              button(
                t("Edit and resend"),
                () => {
                  opened.close();
                  edit(each);
                },
                {
                  symbol: "edit",
                  disabled: !isEditable(each.message),
                  title: isEditable(each.message)
                    ? undefined
                    : t("Only text that is shown whole can be edited; resend it as it is."),
                },
              ),
              button(
                t("Purge"),
                () => {
                  opened.close();
                  purge([each.id]);
                },
                { kind: "danger" },
              ),
              button(
                t("Resend"),
                () => {
                  opened.close();
                  return resend({ ids: [each.id] });
                },
                { kind: "primary", symbol: "send" },
              ),
            ]
          : [],
    });
  };
  const edit = (each) => {
    const value = textarea({ rows: 10, autofocus: true }, textOf(each.message.value) ?? "");
    const key = input({ value: textOf(each.message.key) ?? "", class: "mono" });
    form({
      title: t("Edit and resend {id}", { id: each.id }),
      action: t("Resend"),
      body: [
        field(t("Key"), key),
        field(t("Value"), value, t("The edited message goes to the topic it came from; the letter is purged.")),
      ],
      submit: async () => {
        await post(`${scope}/${each.id}/edit`, {
          key: key.value === (textOf(each.message.key) ?? "") ? null : { text: key.value },
          value: { text: value.value },
        });
        toast("ok", t("The edited message is sent to its topic"));
        await again();
      },
    });
  };
  show(
    page.root,
    pageHead({
      title: name,
      isName: true,
      note: t("Dead letters of this group."),
      actions: [
        button(
          t("Purge all"),
          () =>
            confirmTyped({
              title: t("Purge all dead letters of {name}", { name }),
              text: t("Every waiting dead letter is deleted."),
              name,
              action: t("Purge all"),
              submit: (typed) =>
                settle("purge", { confirm: typed }, (n) => plural(n, "{n} letter is purged", "{n} letters are purged")),
            }),
          { kind: "danger" },
        ),
        button(
          t("Resend all"),
          () =>
            confirm({
              title: t("Resend all dead letters of {name}", { name }),
              text: t("Each waiting dead letter goes to its group once more. If the cause is not fixed, they come back."),
              action: t("Resend all"),
              danger: false,
              submit: () => resend({}),
            }),
          { kind: "primary", symbol: "send" },
        ),
      ],
    }),
    errors,
    card({
      title: t("Letters"),
      tools: [
        chips(
          [
            ["waiting", t("Waiting")],
            ["resent", t("Resent")],
            ["purged", t("Purged")],
          ],
          kind,
          (key) => {
            kind = key;
            note({ state: kind });
            grid.reload();
          },
        ),
        filterBox(
          t("Filter by error"),
          (text) => {
            error = text;
            note({ error });
            grid.reload();
          },
          error,
        ),
      ],
      body: [bar, grid.element],
    }),
  );
  await Promise.all([grid.reload(), refresh()]);
}
