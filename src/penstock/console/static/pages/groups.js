// Consumer groups: the list.
import { get, path, rows } from "../api.js";
import { card, emptyState, groupStatus, lagCell, pageHead } from "../components.js";
import { h, show } from "../dom.js";
import { count, duration, short } from "../format.js";
import { filterBox, Grid } from "../grid.js";
import { at, bootstrap, go, note, state } from "../router.js";
import { t } from "../translations.js";

export async function groups(page) {
  const scope = path`/clusters/${state.cluster}`;
  let filter = page.query.text ?? "";
  let most = 1;
  const total = h("span.count");
  const grid = new Grid({
    label: t("Consumer groups"),
    sort: [page.query.sort ?? "lag", (page.query.descending ?? "true") === "true"],
    onsort: (sort, descending) => note({ sort, descending }),
    onrow: (row) => go(at`/groups/${row.name}`),
    load: async (wanted) => {
      const found = await get(`${scope}/groups${rows(wanted, filter)}`, page.signal);
      most = Math.max(1, most, ...found.items.map((each) => each.lag ?? 0));
      show(total, count(found.total));
      return found;
    },
    empty: () =>
      filter
        ? emptyState({
            symbol: "search",
            title: t("No group matches"),
            text: t("Change the filter, or look at all groups."),
          })
        : emptyState({
            symbol: "groups",
            title: t("No consumer groups yet"),
            text: t("A group appears once a consumer with a group id joins or commits an offset."),
            commands: [`kcat -b ${bootstrap()} -G billing orders`],
          }),
    columns: [
      {
        key: "name",
        title: t("Group"),
        name: true,
        sort: true,
        cell: (row) => h("a", { href: at`/groups/${row.name}` }, row.name),
      },
      { key: "state", title: t("State"), sort: true, cell: (row) => groupStatus(row.state, Boolean(row.paused)) },
      { key: "members", title: t("Members"), num: true, sort: true, phone: false, cell: (row) => count(row.members) },
      { key: "topics", title: t("Topics"), clip: true, phone: false, cell: (row) => row.topics.join(", ") },
      { key: "lag", title: t("Lag"), num: true, sort: true, cell: (row) => lagCell(row.lag, most) },
      {
        key: "rate_per_s",
        title: t("Messages/s"),
        num: true,
        sort: true,
        phone: false,
        cell: (row) => (row.rate_per_s === null ? "–" : short(Math.round(row.rate_per_s * 10) / 10)),
      },
      {
        key: "eta_s",
        title: t("Caught up in"),
        num: true,
        phone: false,
        cell: (row) => (row.lag === 0 ? t("caught up") : row.eta_s === null ? "–" : duration(row.eta_s * 1000)),
      },
    ],
  });
  show(
    page.root,
    pageHead({ title: t("Consumer groups"), note: t("Who reads what, how far behind, and whether it keeps up.") }),
    card({
      title: t("Groups"),
      count: total,
      body: grid.element,
      tools: [
        filterBox(
          t("Filter groups"),
          (text) => {
            filter = text;
            note({ text });
            grid.reload();
          },
          filter,
        ),
      ],
    }),
  );
  page.every(5000, () => grid.reload({ quiet: true }));
  await grid.reload();
}
