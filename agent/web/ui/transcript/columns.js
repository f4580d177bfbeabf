// Shows the answers of several models side by side, and on a narrow page one at a time, with tabs. This file is loaded with
// the first turn that has columns. Each column draws its answer as a transcript does.
import { Drawing } from "./draw.js";
import { make, styled } from "./elements.js";

/** @typedef {{section: HTMLElement, tab: HTMLElement, name: HTMLElement, mark: HTMLElement, drawing: Drawing}} Column */
const STEPS = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
let count = 0;

class Columns {
  /** @param {Drawing} outer @param {import("./draw.js").View} view */
  constructor(outer, view) {
    const { labels } = (this.outer = outer);
    /** @type {Map<string, Column>} */
    this.all = new Map();
    this.tabs = make("div", { className: "lane-tabs", role: "tablist", "aria-label": labels.columns });
    this.grid = make("div", { className: "lanes" });
    this.root = make("div", { className: "side-by-side" }, this.tabs, this.grid);
    view.root.insertBefore(this.root, view.wait);
    view.root.classList.add("wide");
    this.tabs.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      const ids = [...this.all.keys()], by = STEPS[/** @type {keyof typeof STEPS} */ (event.key)];
      if (by === undefined) return;
      event.preventDefault();
      this.choose(ids[Math.max(0, Math.min(ids.length - 1, ids.indexOf(this.shown) + by))]);
      this.all.get(this.shown)?.tab.focus();
    });
    this.shown = "";
    const scroller = outer.root.parentElement;
    if (!scroller) return;
    const sizes = new ResizeObserver(() => this.root.isConnected ? view.root.style.setProperty("--room", `${scroller.clientWidth}px`) : sizes.disconnect());
    sizes.observe(scroller);
  }

  /** Show this column on a narrow page. @param {string} id */
  choose(id) {
    this.shown = id;
    for (const [other, { tab, section }] of this.all) {
      tab.setAttribute("aria-selected", String(other === id));
      tab.tabIndex = other === id ? 0 : -1;
      section.toggleAttribute("data-shown", other === id);
    }
  }

  /** @param {import("./draw.js").Turn} turn @returns {Column} */
  created({ id }) {
    const { outer } = this, name = make("b", { dir: "auto" }), mark = make("p", { className: "chosen" });
    const body = make("div", { className: "answers" }), section = make("section", { className: "lane", id: `column-${(count += 1)}`, tabIndex: -1 }, make("header", {}, name), body, mark);
    const tab = make("button", { type: "button", role: "tab", "aria-controls": section.id, dir: "auto" });
    tab.addEventListener("click", () => this.choose(id));
    const drawing = new Drawing(body, outer.labels, { ...outer.options, actions: ["copy"], hasTexts: false });
    outer.nest?.(section, drawing);
    this.tabs.append(tab);
    this.grid.append(section);
    return { section, tab, name, mark, drawing };
  }

  /** @param {import("./draw.js").Turn[]} turns */
  show(turns) {
    const ids = turns.map(({ id }) => id);
    for (const [id, { section, tab }] of this.all) if (!ids.includes(id)) (section.remove(), tab.remove(), this.all.delete(id));
    for (const turn of turns) {
      const { id, name = "", is_chosen: isChosen = false, is_running: isRunning, bubbles } = turn;
      const column = this.all.get(id) ?? this.created(turn);
      this.all.set(id, column);
      for (const one of [column.name, column.tab]) if (one.textContent !== name) one.textContent = name;
      column.section.setAttribute("aria-label", this.outer.labels.column.replace("{name}", () => name));
      const state = isRunning ? "running" : bubbles.some(({ kind }) => kind === "error") ? "failed" : "done";
      column.section.dataset.state = column.tab.dataset.state = state;
      column.section.toggleAttribute("data-chosen", isChosen);
      const mark = isChosen && turns.every(({ is_running: runs }) => !runs) ? this.outer.labels.chosen : "";
      if (column.mark.textContent !== mark) column.mark.textContent = mark;
      const isActive = column.section.contains(document.activeElement);
      column.drawing.show([turn]);
      if (isActive && document.activeElement === document.body) column.section.focus({ preventScroll: true }); // its button is gone
    }
    if (!ids.includes(this.shown)) this.choose((turns.find(({ is_chosen: isChosen }) => isChosen) ?? turns[0]).id);
  }
}

/** @type {WeakMap<import("./draw.js").View, Columns>} */
const drawn = new WeakMap();
/** Draw the columns of a turn, or remove them. @param {Drawing} outer @param {import("./draw.js").View} view */
export async function draw(outer, view) {
  await styled(new URL("columns.css", import.meta.url).href);
  const { columns = [] } = view.turn, known = drawn.get(view);
  if (!columns.length) {
    known?.root.remove();
    view.root.classList.remove("wide");
    drawn.delete(view);
    return;
  }
  const all = known ?? new Columns(outer, view);
  drawn.set(view, all);
  all.show(columns);
  outer.tick();
}
