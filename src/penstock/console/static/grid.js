// Tables of any length. Rows come from the API a page at a time and only those in sight are elements.
import { append, debounce, h, show } from "./dom.js";
import { icon } from "./icons.js";
import { t } from "./translations.js";
import { problemBanner } from "./components.js";

const ROW = 36;
const PAGE = 100;
const SPARE = 12;

/**
 * columns: [{key, title, cell(row) -> text or element, num, name, clip, phone: false to hide there, sort: true, width}]
 * load({limit, offset, after, sort, descending}) -> {items, total?, next?}
 * Options: key(row), onrow(row), empty() -> element, selectable, onselect(set), sort: ["name", false], label,
 * stacked: rows are blocks on a phone.
 */
export class Grid {
  constructor(options) {
    this.options = { key: (row) => row.name, selectable: false, label: "", page: PAGE, ...options };
    [this.sort, this.descending] = options.sort ?? ["", false];
    this.rows = [];
    this.total = null;
    this.next = null;
    this.selected = new Set();
    this.head = h("thead");
    this.body = h("tbody");
    this.scroller = h(
      "div.grid",
      { tabindex: "0", role: "region", "aria-label": this.options.label },
      h("table", null, this.head, this.body),
    );
    if (options.free) this.scroller.classList.add("free");
    if (options.stacked) this.scroller.classList.add("stacked");
    this.foot = h("div.grid-foot", { hidden: true });
    this.element = h("div", null, this.scroller, this.foot);
    this.scroller.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.body.addEventListener("pointerdown", () => this.press());
    this.drawHead();
    this.drawSkeleton();
  }

  get columns() {
    return this.options.columns;
  }

  /** Loads from the beginning; what is shown stays until the answer is there. */
  async reload({ quiet = false } = {}) {
    if (!quiet) {
      this.rows = [];
      this.drawSkeleton();
    }
    const wanted = quiet ? Math.max(this.options.page, Math.min(this.rows.length, 1000)) : this.options.page;
    const turn = (this.turn = {});
    try {
      const page = await this.options.load({
        limit: wanted,
        offset: 0,
        after: null,
        sort: this.sort,
        descending: this.descending,
      });
      if (this.turn !== turn) return;
      this.take(page, true);
    } catch (problem) {
      if (this.turn !== turn || problem.name === "AbortError") return;
      if (quiet && this.rows.length) return;
      this.fail(problem);
    }
  }

  async more() {
    if (this.loading || !this.hasMore) return;
    this.loading = true;
    const turn = this.turn;
    try {
      const page = await this.options.load({
        limit: this.options.page,
        offset: this.rows.length,
        after: this.next,
        sort: this.sort,
        descending: this.descending,
      });
      if (this.turn === turn) this.take(page, false);
    } catch (problem) {
      if (this.turn === turn && problem.name !== "AbortError") {
        show(this.foot, problem.message, h("button.btn.small", { onclick: () => this.more() }, t("Try again")));
        this.foot.hidden = false;
      }
    } finally {
      this.loading = false;
    }
  }

  get hasMore() {
    return this.next !== null || (this.total !== null && this.rows.length < this.total);
  }

  take(page, isFresh) {
    this.rows = isFresh ? page.items : this.rows.concat(page.items);
    this.total = page.total ?? null;
    this.next = page.next ?? null;
    if (page.total !== undefined && page.next === undefined && !page.items.length) this.total = this.rows.length;
    this.draw();
  }

  /** Rows that the page has itself, such as hits of a search. */
  setRows(rows) {
    this.turn = {};
    this.take({ items: rows, total: rows.length }, true);
  }

  fail(problem) {
    show(
      this.body,
      h(
        "tr",
        null,
        h(
          "td",
          { colspan: this.width },
          h("div", { style: { padding: "16px 0", "white-space": "normal" } }, problemBanner(problem)),
        ),
      ),
    );
    this.foot.hidden = true;
  }

  get width() {
    return this.columns.length + (this.options.selectable ? 1 : 0);
  }

  drawHead() {
    const cells = this.columns.map((column) => {
      const mine = column.sort && this.sort === column.key;
      const title = column.sort
        ? h(
            "button",
            { type: "button", onclick: () => this.order(column) },
            column.title,
            h("span.order", { "aria-hidden": "true" }, mine ? (this.descending ? "↓" : "↑") : ""),
          )
        : column.title || h("span.visually-hidden", null, t("Actions"));
      return h(
        "th",
        {
          scope: "col",
          class: classes(column),
          "aria-sort": mine ? (this.descending ? "descending" : "ascending") : null,
          style: column.width ? { width: column.width } : {},
        },
        title,
      );
    });
    if (this.options.selectable) {
      this.all = h("input", {
        type: "checkbox",
        "aria-label": t("Select all"),
        onchange: () => this.selectAll(this.all.checked),
      });
      cells.unshift(h("th", { scope: "col", style: { width: "32px" } }, this.all));
    }
    show(this.head, h("tr", null, cells));
  }

  order(column) {
    this.descending = this.sort === column.key ? !this.descending : Boolean(column.num);
    this.sort = column.key;
    this.drawHead();
    this.options.onsort?.(this.sort, this.descending);
    this.reload();
  }

  drawSkeleton() {
    const rows = Array.from({ length: 6 }, (_, line) =>
      h(
        "tr",
        { "aria-hidden": "true" },
        Array.from({ length: this.width }, (_, index) => {
          const column = this.columns[index - (this.options.selectable ? 1 : 0)];
          return h(
            "td",
            { class: column ? classes(column) : "" },
            h("span.skeleton", { style: { width: `${36 + ((line * 29 + index * 47) % 64)}px` } }),
          );
        }),
      ),
    );
    show(this.body, rows);
    this.scroller.setAttribute("aria-busy", "true");
    this.foot.hidden = true;
  }

  /** A row that is drawn anew between press and release loses the click, so news wait until then. */
  press() {
    this.isPressed = true;
    const ends = ["pointerup", "pointercancel"];
    const release = () => {
      for (const end of ends) removeEventListener(end, release);
      setTimeout(() => {
        this.isPressed = false;
        if (this.hasNews) this.draw();
      });
    };
    for (const end of ends) addEventListener(end, release);
  }

  draw() {
    this.hasNews = this.isPressed;
    if (this.isPressed) return;
    this.scroller.removeAttribute("aria-busy");
    this.scroller.hidden = this.rows.length === 0 && Boolean(this.options.empty);
    this.emptyState?.remove();
    if (this.scroller.hidden) {
      this.emptyState = this.options.empty();
      this.element.prepend(this.emptyState);
      this.foot.hidden = true;
      return;
    }
    this.drawRows();
    this.drawFoot();
  }

  drawFoot() {
    this.foot.hidden = !this.hasMore && this.rows.length <= 20;
    show(
      this.foot,
      this.total === null
        ? t("{n} shown", { n: this.rows.length })
        : t("{n} of {total}", { n: Math.min(this.rows.length, this.total), total: this.total }),
    );
    if (this.hasMore) append(this.foot, h("button.btn.small", { onclick: () => this.more() }, t("Show more")));
  }

  scrolled() {
    this.drawRows();
    const { scrollTop, clientHeight, scrollHeight } = this.scroller;
    if (scrollTop + clientHeight > scrollHeight - ROW * 20) this.more();
  }

  drawRows() {
    const isFree = this.rows.length <= 200 && !this.isWindowed;
    this.isWindowed = !isFree;
    const height = this.rowHeight ?? ROW;
    const first = isFree ? 0 : Math.max(0, Math.floor(this.scroller.scrollTop / height) - SPARE);
    const last = isFree
      ? this.rows.length
      : Math.min(
          this.rows.length,
          Math.ceil((this.scroller.scrollTop + Math.max(this.scroller.clientHeight, 900)) / height) + SPARE,
        );
    const drawn = [];
    if (first > 0) drawn.push(this.spacer(first * height));
    for (let index = first; index < last; index++) drawn.push(this.row(this.rows[index]));
    if (last < this.rows.length) drawn.push(this.spacer((this.rows.length - last) * height));
    const focus = this.body.contains(document.activeElement) ? document.activeElement : null;
    const mark = focus?.closest("tr")?.dataset.key;
    const place = focus ? [...focus.closest("tr").querySelectorAll("a,button,input")].indexOf(focus) : -1;
    show(this.body, drawn);
    if (mark !== undefined && place >= 0) {
      const again = [...this.body.rows].find((row) => row.dataset.key === mark);
      again?.querySelectorAll("a,button,input")[place]?.focus({ preventScroll: true });
    }
    if (isFree && this.body.rows.length) this.rowHeight = this.body.rows[0].offsetHeight || ROW;
  }

  spacer(height) {
    return h(
      "tr.spacer",
      { "aria-hidden": "true" },
      h("td", { colspan: this.width, style: { height: `${height}px` } }),
    );
  }

  row(row) {
    const key = String(this.options.key(row));
    const cells = this.columns.map((column) => {
      const content = column.cell ? column.cell(row) : row[column.key];
      return h(
        "td",
        { class: classes(column), title: column.clip && typeof content === "string" ? content : null },
        content ?? "–",
      );
    });
    if (this.options.selectable) {
      const box = h("input", {
        type: "checkbox",
        "aria-label": t("Select {name}", { name: key }),
        checked: this.selected.has(key),
        onchange: () => this.select(key, box.checked),
      });
      cells.unshift(h("td", null, box));
    }
    const element = h("tr", { "data-key": key, class: this.selected.has(key) ? "selected" : "" }, cells);
    if (this.options.onrow) {
      element.classList.add("clickable");
      element.addEventListener("click", (event) => {
        if (!event.target.closest("a,button,input,label") && !String(getSelection())) this.options.onrow(row);
      });
    }
    this.options.decorate?.(element, row);
    return element;
  }

  select(key, isOn) {
    this.selected[isOn ? "add" : "delete"](key);
    for (const row of this.body.rows) if (row.dataset.key === key) row.classList.toggle("selected", isOn);
    this.told();
  }

  selectAll(isOn) {
    this.selected = new Set(isOn ? this.rows.map((row) => String(this.options.key(row))) : []);
    this.drawRows();
    this.told();
  }

  clearSelection() {
    this.selected.clear();
    this.drawRows();
    this.told();
  }

  told() {
    if (this.all) {
      this.all.checked = this.selected.size > 0 && this.selected.size >= this.rows.length;
      this.all.indeterminate = this.selected.size > 0 && !this.all.checked;
    }
    this.options.onselect?.(this.selected);
  }
}

function classes(column) {
  return [
    column.num && "num",
    column.name && "name",
    column.clip && "clip",
    column.phone === false && "hide-phone",
    column.class,
  ]
    .filter(Boolean)
    .join(" ");
}

/** A table of few rows that the page holds whole. */
export function table(columns, rows, options = {}) {
  const grid = new Grid({ columns, free: true, load: async () => ({ items: rows, total: rows.length }), ...options });
  grid.setRows(rows);
  return grid.element;
}

/** The box that filters a table; `/` puts the cursor there. */
export function filterBox(placeholder, onchange, value = "") {
  const input = h("input.input", {
    type: "search",
    placeholder,
    "aria-label": placeholder,
    value,
    "data-search": true,
    autocomplete: "off",
    spellcheck: "false",
  });
  input.addEventListener(
    "input",
    debounce(() => onchange(input.value.trim())),
  );
  return h("div.with-icon.filter", null, icon("search"), input);
}
