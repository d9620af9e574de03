// Cleaning jobs: what they remove, when they ran and run next, and running one now.
import { get, path, post, put } from "../api.js";
import { banner, button, card, checkbox, field, iconButton, input, pageHead, status } from "../components.js";
import { act, confirmTyped, drawer, form, toast } from "../dialogs.js";
import { h, show } from "../dom.js";
import { count, duration, relative, time } from "../format.js";
import { table } from "../grid.js";
import { draw } from "../router.js";
import { t } from "../translations.js";

export async function jobs(page) {
  const list = h("div");
  show(
    page.root,
    pageHead({ title: t("Cleaning jobs"), note: t("What the console cleans up by itself, and when.") }),
    list,
  );
  const refresh = async () => {
    const found = await get("/jobs", page.signal);
    show(
      list,
      card({
        title: t("Jobs"),
        count: count(found.length),
        body: table(
          [
            {
              key: "name",
              title: t("Job"),
              cell: (each) =>
                h(
                  "div",
                  { style: { "white-space": "normal", padding: "7px 0", "max-width": "460px" } },
                  h("b", null, each.name),
                  h("div.muted", null, each.doc),
                ),
            },
            {
              key: "state",
              title: t("State"),
              cell: (each) =>
                each.is_running
                  ? status("ok", t("Runs"))
                  : each.is_enabled
                    ? status("ok", t("On"))
                    : status("idle", t("Off")),
            },
            { key: "every", title: t("Every"), phone: false, cell: (each) => duration(each.every_ms) },
            {
              key: "last",
              title: t("Last run"),
              phone: false,
              cell: (each) =>
                each.last
                  ? h(
                      "span",
                      { title: time(each.last.at_ms) },
                      `${relative(each.last.at_ms)} · `,
                      each.last.problem
                        ? h("span.status.error", null, t("failed"))
                        : t("{n} removed", { n: count(each.last.removed) }),
                    )
                  : t("never"),
            },
            {
              key: "next",
              title: t("Next run"),
              phone: false,
              cell: (each) => (each.next_ms ? relative(each.next_ms) : "–"),
            },
            {
              key: "act",
              title: "",
              class: "actions-cell",
              cell: (each) =>
                h(
                  "span.row.end",
                  null,
                  button(t("Run now"), () => run(each), { small: true, symbol: "play" }),
                  iconButton("audit", t("Runs of {name}", { name: each.name }), () => runs(each)),
                  iconButton("edit", t("Change {name}", { name: each.name }), () => change(each)),
                ),
            },
          ],
          found,
          { label: t("Jobs"), stacked: true },
        ),
      }),
    );
  };
  page.every(5000, refresh);
  await refresh();
}

function run(each) {
  if (!each.is_destructive) return runNow(each);
  const options = Object.entries(each.options).map(([name, value]) => `${name} = ${value}`);
  return confirmTyped({
    title: t("Run {name} now", { name: each.name }),
    text: each.doc,
    consequences: options,
    name: each.name,
    action: t("Run now"),
    submit: () => runNow(each),
  });
}

async function runNow(each) {
  const done = await act(() => post(path`/jobs/${each.name}/run`));
  if (done)
    toast(
      done.problem ? "error" : "ok",
      done.problem
        ? t("{name} failed", { name: each.name })
        : t("{name}: {n} removed", { name: each.name, n: count(done.removed) }),
      done.problem,
    );
  draw();
}

async function runs(each) {
  const found = await act(() => get(path`/jobs/${each.name}/runs`));
  if (!found) return;
  drawer({
    title: t("Runs of {name}", { name: each.name }),
    body: found.length
      ? table(
          [
            { key: "at", title: t("Time"), cell: (one) => time(one.at_ms) },
            { key: "by", title: t("By"), cell: (one) => one.by },
            {
              key: "removed",
              title: t("Removed"),
              cell: (one) =>
                h(
                  "div",
                  { style: { "white-space": "normal", "max-width": "420px" } },
                  count(one.removed),
                  one.what.length ? h("div.muted", null, one.what.join("; ")) : null,
                ),
            },
            { key: "problem", title: t("Problem"), clip: true, cell: (one) => one.problem || "–" },
          ],
          found,
          { key: (one) => one.at_ms },
        )
      : banner("", t("It has not run yet."), ""),
  });
}

function change(each) {
  const hours = input({
    type: "number",
    min: 0.02,
    step: "any",
    value: String(each.every_ms / 3600000),
    autofocus: true,
  });
  const enabled = checkbox(t("On"), each.is_enabled);
  const options = Object.entries(each.options).map(([name, value]) => [
    name,
    input({ type: "number", min: 0, value: String(value) }),
  ]);
  form({
    title: t("Change {name}", { name: each.name }),
    action: t("Save"),
    body: [
      h("p", null, each.doc),
      field(t("Every (hours)"), hours),
      options.map(([name, box]) =>
        field(name, box, /_ms$/.test(name) ? t("milliseconds; now {time}", { time: duration(Number(box.value)) }) : ""),
      ),
      enabled,
    ],
    submit: async () => {
      await put(path`/jobs/${each.name}`, {
        every_ms: Math.round(Number(hours.value) * 3600000),
        is_enabled: enabled.box.checked,
        options: Object.fromEntries(options.map(([name, box]) => [name, Number(box.value)])),
      });
      toast("ok", t("{name} is changed", { name: each.name }));
      draw();
    },
  });
}
