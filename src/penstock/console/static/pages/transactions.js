// Transactions: which are open, which hang, and aborting one.
import { get, path, post, query } from "../api.js";
import { banner, button, card, chips, emptyState, pageHead, pairs, status } from "../components.js";
import { confirmTyped, drawer, toast } from "../dialogs.js";
import { h, show } from "../dom.js";
import { count, duration, relative, time } from "../format.js";
import { table } from "../grid.js";
import { at, draw, note, state } from "../router.js";
import { t } from "../translations.js";

const STATES = {
  Ongoing: "warn",
  PrepareCommit: "warn",
  PrepareAbort: "warn",
  CompleteCommit: "ok",
  CompleteAbort: "idle",
  Empty: "idle",
};
const HANGING_MS = 60000;

export async function transactions(page) {
  const scope = path`/clusters/${state.cluster}/transactions`;
  let kind = page.query.show ?? "all";
  const list = h("div");
  const refresh = async () => {
    const found = await get(
      `${scope}${query({ open: kind === "all" ? "" : true, older_than_ms: kind === "hanging" ? HANGING_MS : "" })}`,
      page.signal,
    );
    show(
      list,
      found.problems.length
        ? banner("warn", t("Some brokers did not list their transactions"), found.problems.join("; "))
        : null,
      table(
        [
          {
            key: "id",
            title: t("Transactional id"),
            name: true,
            cell: (each) =>
              h("button.cell-button.mono", { type: "button", onclick: () => open(scope, each) }, each.transactional_id),
          },
          { key: "state", title: t("State"), cell: (each) => status(STATES[each.state] ?? "idle", each.state) },
          { key: "producer", title: t("Producer id"), num: true, phone: false, cell: (each) => each.producer_id },
          {
            key: "coordinator",
            title: t("Coordinator"),
            phone: false,
            cell: (each) => t("broker {id}", { id: each.coordinator }),
          },
        ],
        found.transactions,
        {
          key: (each) => each.transactional_id,
          onrow: (each) => open(scope, each),
          empty: () =>
            emptyState({
              symbol: "transactions",
              title: kind === "hanging" ? t("No transaction hangs") : t("No transactions"),
              text: t(
                "A producer with a transactional id appears here. One that stays open holds back consumers that read only committed messages.",
              ),
            }),
        },
      ),
    );
  };
  show(
    page.root,
    pageHead({
      title: t("Transactions"),
      note: t("An open transaction holds back all consumers that read only committed messages."),
    }),
    card({
      title: t("Transactional ids"),
      tools: [
        chips(
          [
            ["all", t("All")],
            ["open", t("Open")],
            ["hanging", t("Open for over a minute")],
          ],
          kind,
          (key) => {
            kind = key;
            note({ show: kind === "all" ? "" : kind });
            refresh();
          },
        ),
      ],
      body: list,
    }),
  );
  page.every(5000, refresh);
  await refresh();
}

async function open(scope, each) {
  const told = await get(`${scope}/description${query({ id: each.transactional_id })}`);
  const isOpen = told.state === "Ongoing";
  const opened = drawer({
    title: told.transactional_id,
    body: [
      pairs([
        [t("State"), status(STATES[told.state] ?? "idle", told.state)],
        [t("Started"), told.started_ms ? `${time(told.started_ms)} (${relative(told.started_ms)})` : "–"],
        [t("Times out after"), duration(told.timeout_ms)],
        [t("Producer id"), told.producer_id],
        [t("Epoch"), told.producer_epoch],
      ]),
      h(
        "section",
        null,
        h("div.section-title", null, `${t("Partitions")} · ${count(told.partitions.length)}`),
        told.partitions.map((one) =>
          h("div", null, h("a.mono", { href: at`/topics/${one.topic}` }, `${one.topic}-${one.partition}`)),
        ),
      ),
    ],
    footer: isOpen
      ? [
          button(
            t("Abort"),
            () => {
              opened.close();
              confirmTyped({
                title: t("Abort {id}", { id: told.transactional_id }),
                text: t("What it has written is dropped, and its producer is fenced."),
                name: told.transactional_id,
                action: t("Abort"),
                submit: async (confirm) => {
                  await post(`${scope}/abort`, { id: told.transactional_id, confirm });
                  toast("ok", t("{id} is aborted", { id: told.transactional_id }));
                  draw();
                },
              });
            },
            { kind: "danger-solid" },
          ),
        ]
      : [],
  });
}
