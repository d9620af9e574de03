// A page that is about one topic, before there is one: choose it by name, or from the busiest.
import { get, path, query } from "../api.js";
import { button, card, emptyState, input, pageHead } from "../components.js";
import { debounce, h, show } from "../dom.js";
import { count } from "../format.js";
import { icon } from "../icons.js";
import { go, state } from "../router.js";
import { t } from "../translations.js";

export async function chooseTopic(page, { title, text, address }) {
  const scope = path`/clusters/${state.cluster}`;
  const list = h("ul.attention");
  const box = input({
    type: "search",
    placeholder: t("Name of a topic"),
    class: "mono",
    "data-search": true,
    "aria-label": t("Topic"),
  });
  const refresh = async () => {
    const found = await get(
      `${scope}/topics${query({ text: box.value.trim(), sort: "rate_per_s", descending: true, limit: 12 })}`,
      page.signal,
    );
    show(
      list,
      found.items.map((each) =>
        h(
          "li",
          null,
          icon("topics"),
          h("div.what", null, h("a.mono", { href: address(each.name) }, each.name)),
          h("span.muted", null, t("{n} messages", { n: count(each.messages) })),
        ),
      ),
    );
    if (!found.items.length)
      show(
        list,
        h(
          "li",
          null,
          emptyState({
            symbol: "topics",
            title: t("No topic matches"),
            text: t("Change the name, or create a topic."),
            commands: ["penstock topic create orders --partitions 3"],
          }),
        ),
      );
    return found.items;
  };
  const open = async () => {
    const found = await refresh();
    if (found.length) go(address(found.find((each) => each.name === box.value.trim())?.name ?? found[0].name));
  };
  box.addEventListener("input", debounce(refresh));
  show(
    page.root,
    pageHead({ title, note: text }),
    card({
      label: title,
      body: [
        h(
          "form.row",
          {
            style: { padding: "16px" },
            onsubmit: (event) => {
              event.preventDefault();
              open();
            },
          },
          h("div.with-icon.grow", null, icon("search"), box),
          button(t("Open"), open, { kind: "primary" }),
        ),
        list,
      ],
    }),
  );
  await refresh();
}
