// What a block has beside its text: the language and buttons of code, the buttons of tables, the names of task boxes, room
// for long numbers, and the cards of sources. Links open another tab. Code, tables and formulas that are wider than their
// place can be scrolled with the keyboard. Only blocks that were drawn are looked at.
import { button, imported, make } from "./elements.js";

/** @typedef {import("./draw.js").Source} Source @typedef {import("./draw.js").Turn} Turn */

const SAME = "c cpp cs css csv dart diff go html ini java js json jsx lua md php ps1 py r rb rs scala sh sql svg swift tex toml ts tsx vue xml yaml yml";
/** @type {Record<string, string>} */
const OTHER = {
  bash: "sh", "c#": "cs", "c++": "cpp", csharp: "cs", elixir: "ex", haskell: "hs", javascript: "js", julia: "jl", jsonc: "json",
  kotlin: "kt", latex: "tex", markdown: "md", mermaid: "mmd", perl: "pl", powershell: "ps1", python: "py", ruby: "rb", rust: "rs",
  shell: "sh", typescript: "ts", zsh: "sh",
};
/** @type {Record<string, string>} The kinds of code that can be shown as what it makes, by the languages that models write. */
const KINDS = {
  csv: "csv", html: "html", markdown: "markdown", md: "markdown", mermaid: "mermaid", svg: "svg", tsv: "csv", vega: "vega-lite", "vega-lite": "vega-lite", vegalite: "vega-lite",
};
/** @type {Record<string, string>} */
const WHOLE = { dockerfile: "Dockerfile", makefile: "Makefile" };

/**
 * The name under which code is saved. It has no ending that a model has chosen freely, because the reader's computer might run the file.
 * @param {string} language
 */
export function fileName(language) {
  const name = language.toLowerCase();
  const known = (/** @type {Record<string, string>} */ names) => (Object.hasOwn(names, name) ? names[name] : undefined);
  return known(WHOLE) ?? `code.${known(OTHER) ?? (SAME.split(" ").includes(name) ? name : "txt")}`;
}

/** The parts of a long block: the server cuts it, and each later part is `more` of it. @param {Element} element */
export function wholeBlock(element) {
  const all = [element];
  for (let part = element.parentElement; part?.matches(".part"); ) {
    part = /** @type {HTMLElement | null} */ (part.nextElementSibling);
    const more = part?.querySelector(":scope > .more");
    if (more?.localName !== element.localName) break;
    all.push(more);
  }
  return all;
}

/** The first part of a long block. @param {Element} element */
function firstBlock(element) {
  let one = element;
  while (one.matches(".more")) {
    const before = one.parentElement?.previousElementSibling?.querySelector(`:scope > ${one.localName}`);
    if (!before) break;
    one = before;
  }
  return /** @type {HTMLElement} */ (one);
}

/** @param {Element} pre */
const languageOf = (pre) => /^language-(.+)$/.exec(pre.querySelector("code")?.className ?? "")?.[1] ?? "";

/** The kind of what code makes, "" if it makes nothing that can be shown. @param {Element} pre */
export const kindOf = (pre) => (Object.hasOwn(KINDS, languageOf(pre)) ? KINDS[languageOf(pre)] : "");

/** What the author calls the code: the name of a file, or the title behind the language. @param {Element} pre */
export const titleOf = (pre) => pre.getAttribute("aria-label") ?? pre.querySelector("code")?.dataset.title ?? "";

/** Whether code is still being written. @param {Element} pre */
export const isGrowing = (pre) => Boolean(pre.closest(".bubble[data-state=running]")) && !wholeBlock(pre).at(-1)?.closest(".part")?.nextElementSibling;

/** @param {Element} pre */
export const codeOf = (pre) => wholeBlock(pre).map((part) => {
  const code = part.querySelector("code");
  return code ? code.textContent : [...part.childNodes].map((node) => (node instanceof Text ? node.data : "")).join("");
}).join("");

/** @type {Record<string, string>} */
const SIGNS = { STRONG: "**", B: "**", EM: "*", I: "*", DEL: "~~", S: "~~" };

/** @param {Element} element @param {string} name */
const address = (element, name) => (element.getAttribute(name) ?? "").replaceAll("|", "%7C");

/**
 * The text of a cell, as Markdown or plain, without the numbers of sources.
 * @param {Node} node
 * @param {boolean} isMarkdown
 * @returns {string}
 */
function textOf(node, isMarkdown) {
  if (node instanceof Text) return isMarkdown ? node.data.replaceAll("|", "\\|") : node.data;
  if (!(node instanceof Element) || node.matches(".mark, [data-own]")) return "";
  if (node.matches("math")) {
    const latex = node.getAttribute("alttext") ?? "";
    return isMarkdown ? `$${latex.replaceAll("\\|", "\\Vert ").replaceAll("|", "\\vert ")}$` : latex;
  }
  if (node.matches("br")) return isMarkdown ? "<br>" : "\n";
  if (node instanceof HTMLImageElement) return isMarkdown ? `![${node.alt}](${address(node, "src")})` : node.alt;
  const text = [...node.childNodes].map((child) => textOf(child, isMarkdown)).join("");
  if (!isMarkdown) return text;
  if (node.matches("code")) {
    const ticks = "`".repeat(Math.max(0, ...(text.match(/`+/g) ?? []).map(({ length }) => length)) + 1);
    return ticks.length > 1 ? `${ticks} ${text} ${ticks}` : `\`${text}\``;
  }
  if (node.matches("a[href]")) return `[${text}](${address(node, "href")})`;
  if (node.matches("sub, sup, kbd")) return `<${node.localName}>${text}</${node.localName}>`;
  const sign = SIGNS[node.tagName] ?? "";
  return sign + text + sign;
}

/** The cells of a table, whose later parts begin with the same head. @param {Element} table @param {boolean} isMarkdown */
const cells = (table, isMarkdown) =>
  wholeBlock(table).flatMap((part, number) => [...part.querySelectorAll(number ? "tbody tr" : "tr")])
    .map((row) => [.../** @type {HTMLTableRowElement} */ (row).cells].map((cell) => textOf(cell, isMarkdown).trim()));

/** @type {Record<string, string>} */
const RULES = { "at-left": ":--", "at-center": ":-:", "at-right": "--:" };

/** @param {HTMLTableElement} table */
function asMarkdown(table) {
  const rows = cells(table, true).map((row) => row.map((cell) => cell.replace(/\s+/g, " ")));
  rows.splice(1, 0, [...table.rows[0].cells].map(({ className }) => RULES[className] ?? "---"));
  return rows.map((row) => `| ${row.join(" | ")} |\n`).join("");
}

// A spreadsheet would run a cell that begins like a formula. Some also split cells at semicolons, tabs and line breaks,
// and drop quotation marks there. A number may begin with a sign, and a sign may be all of a cell.
const FORMULA = /^[\s\p{C}"]*[=@+\-\u2212]/u, NUMBER = /^[+\-\u2212][.,\s\p{Sc}]*\d[\d.,\s\p{Sc}]*(e[+-]?\d+)?%?$/iu;
const inert = (/** @type {string} */ text) => /^\s*[+\-\u2212]\s*$/.test(text) ? text : text.split(/([;\t\r\n])/)
  .map((part) => (FORMULA.test(part.normalize("NFKC")) && !NUMBER.test(part.trim()) ? `'${part}` : part)).join("");
const field = (/** @type {string} */ text) => (/[",;\t\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
/** @param {HTMLTableElement} table */
const asCsv = (table) => cells(table, false).map((row) => `${row.map((cell) => field(inert(cell))).join(",")}\r\n`).join("");

/** What a button of a block copies or saves; nothing for other buttons. @param {HTMLButtonElement} pressed */
export function textOfBlock(pressed) {
  const tools = pressed.closest(".tools"), table = tools?.nextElementSibling, pre = tools?.closest("pre");
  if (table instanceof HTMLTableElement) return pressed.dataset.action === "markdown" ? asMarkdown(table) : asCsv(table);
  return pre ? codeOf(pre) : undefined;
}

/** @param {string} name @param {Blob} blob */
export function save(name, blob) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

export class Frames {
  /**
   * @param {Record<string, string>} labels
   * @param {{diagrams?: Record<string, string>, python?: string, render?: (text: string) => Promise<string[]>, canFix?: boolean}} options see `mount`
   */
  constructor(labels, options = {}) {
    this.labels = labels;
    this.options = options;
    this.near = new IntersectionObserver((all) => {
      for (const { target, isIntersecting } of all) if (isIntersecting) this.draw(/** @type {HTMLElement} */ (target));
    }, { rootMargin: "50%" });
    this.wide = new ResizeObserver((all) => all.forEach(({ target }) => this.measure(/** @type {HTMLElement} */ (target))));
  }

  /** Complete a block that was drawn. In a step, code is only copied. @param {HTMLElement} part @param {boolean} isStep */
  complete(part, isStep) {
    for (const tools of part.querySelectorAll(".tools.above")) if (tools.nextElementSibling?.localName !== "table") tools.remove();
    for (const one of part.querySelectorAll("pre, table, math[display=block], ol, input[type=checkbox], a[href^=http]")) {
      if (one instanceof HTMLPreElement) this.code(one, isStep);
      else if (one instanceof HTMLTableElement) this.table(one);
      else if (one instanceof HTMLOListElement) makeRoom(one);
      else if (one instanceof HTMLInputElement) this.task(one);
      else if (one instanceof HTMLAnchorElement) {
        one.target = "_blank";
        one.toggleAttribute("data-bare", bare(one.textContent ?? "") === bare(one.getAttribute("href") ?? ""));
      }
      else this.watch(one, part);
    }
  }

  /** @param {HTMLPreElement} pre @param {boolean} isStep */
  code(pre, isStep) {
    const code = pre.querySelector("code"), language = languageOf(pre), part = pre.closest(".part"), kind = isStep ? "" : this.shown(pre);
    const own = pre.getAttribute("aria-label"), label = this.labels.save.replace("{name}", () => own ?? fileName(language));
    this.watch(code ?? pre, pre);
    if (kind === "mermaid") this.watchNear(firstBlock(pre));
    // A style that asks whether such a block follows would be asked of all blocks before each new one.
    const after = part?.nextElementSibling?.querySelector(":scope > pre.more");
    if (part === pre.parentElement) pre.toggleAttribute("data-goes-on", Boolean(after));
    if (pre.classList.contains("more")) return void part?.previousElementSibling?.querySelector(":scope > pre")?.setAttribute("data-goes-on", "");
    pre.dataset.language = titleOf(pre) || language;
    if (!pre.querySelector(":scope > .tools")) {
      pre.prepend(make("div", { className: "tools", "data-own": "1" }, ...(code && !isStep ? [button("save", "")] : []), button("code", this.labels.code)));
    }
    const tools = /** @type {Element} */ (pre.querySelector(":scope > .tools"));
    const offered = { preview: kind, run: !isStep && this.options.python && /^py(thon)?3?$/i.test(language) };
    for (const [name, is] of Object.entries(offered)) {
      const one = tools.querySelector(`:scope > [data-action=${name}]`);
      if (!is) one?.remove();
      else if (!one) tools.prepend(button(name, this.labels[name]));
    }
    /** @type {HTMLButtonElement | null} */
    const saves = pre.querySelector(":scope > .tools > [data-action=save]");
    if (!saves || saves.title === label) return;
    [saves.title, saves.value] = [label, own ?? fileName(language)];
    saves.setAttribute("aria-label", label);
  }

  /** The kind of what this page can show of code. @param {Element} pre */
  shown(pre) {
    const kind = kindOf(pre), { diagrams, render } = this.options;
    return (kind === "markdown" && !render) || (["mermaid", "vega-lite"].includes(kind) && !diagrams?.[kind]) ? "" : kind;
  }

  /** Draw a diagram when it comes near the reader. @param {Element} pre */
  watchNear(pre) {
    this.near.unobserve(pre);
    this.near.observe(pre);
  }

  /** Draw a diagram in place of its code. @param {HTMLElement} pre */
  async draw(pre) {
    const module = await imported(new URL("preview.js", import.meta.url).href); // without a network, code stays code
    module?.drawInside(pre, this);
  }

  /** Show what code makes beside the chat. @param {HTMLElement} pre @param {import("./artifacts.js").Actions} actions */
  async open(pre, actions) {
    const module = await imported(new URL("artifacts.js", import.meta.url).href);
    module ? await module.open(pre, this, actions) : actions.fail(this.labels.failed);
  }

  /** Run Python code, and show its output below. @param {HTMLElement} pre @param {import("./python.js").Actions} actions */
  async run(pre, actions) {
    const module = await imported(new URL("python.js", import.meta.url).href);
    module ? await module.run(pre, this, actions) : actions.fail(this.labels.failed);
  }

  /** @param {HTMLTableElement} table */
  table(table) {
    this.watch(table, /** @type {HTMLElement} */ (table.parentElement));
    if (table.classList.contains("more") || table.previousElementSibling?.matches(".tools")) return;
    const { markdown, csv } = this.labels;
    table.before(make("div", { className: "tools above", "data-own": "1" },
      button("markdown", markdown, { className: "", textContent: "Markdown" }), button("csv", csv, { className: "", textContent: "CSV" })));
  }

  /** @param {HTMLInputElement} box */
  task(box) {
    const words = [.../** @type {HTMLElement} */ (box.parentElement).childNodes].filter(({ nodeName }) => !/^[OU]L$/.test(nodeName));
    box.setAttribute("aria-label", words.map(({ textContent }) => textContent).join("").replace(/\s+/g, " ").trim() || this.labels.task);
  }

  /** Measure these after the next layout, and whenever their sizes change. @param {Element[]} all */
  watch(...all) {
    for (const one of all) {
      this.wide.unobserve(one);
      this.wide.observe(one);
    }
  }

  /** Let the keyboard reach what is scrolled. @param {HTMLElement} target */
  measure(target) {
    if (!target.isConnected) return this.wide.unobserve(target);
    const { overflowX, overflowY } = getComputedStyle(target);
    const isScrolled = (overflowX === "auto" && target.scrollWidth > target.clientWidth + 1)
      || (overflowY === "auto" && target.scrollHeight > target.clientHeight + 1);
    if (isScrolled === target.hasAttribute("tabindex")) return;
    if (!isScrolled) return ["tabindex", "role", "aria-label"].forEach((name) => target.removeAttribute(name));
    const { wideTable, wideCode, wideFormula } = this.labels, isTable = target.matches("table, :has(> table)");
    target.tabIndex = 0;
    if (!target.matches("table")) target.setAttribute("role", "group");
    target.setAttribute("aria-label", isTable ? wideTable : target.matches("pre, code") ? wideCode : wideFormula);
  }
}

/** Numbers of more than two digits would be left of the text, on a phone outside the page. @param {HTMLOListElement} list */
function makeRoom(list) {
  const { length } = String(list.start + list.childElementCount - 1);
  if (length > 2) list.style.setProperty("--digits", String(length));
}

/** An address without what it needs not have when it is read. Print adds the address to other links. @param {string} text */
const bare = (text) => text.trim().replace(/^(?:https?:\/\/)?(?:www\.)?|\/$/g, "");

// The numbers of sources in answers: pointing at one, or reaching it with the keyboard, shows the source and the cited
// passage. A number of a web page is a link. One of a document, and the document's title in the list below the answer, is
// the event `transcript:source`.
const LINGER_MS = 150; // so that the pointer can cross a gap
let cards = 0;


/** @param {Source} source @param {Record<string, string>} labels */
const placeOf = ({ url, page }, labels) =>
  url ? new URL(url).hostname.replace(/^www\./, "") : page === null ? "" : labels.page.replace("{page}", String(page));

/** @param {Turn} turn @param {HTMLElement} chip @returns {Source | undefined} */
const sourceOf = (turn, chip) => turn.sources?.find(({ number }) => String(number) === chip.dataset.source);

/** @param {HTMLElement} chip @param {Source} source */
const passageOf = (chip, { passages }) => passages[Number(chip.dataset.passage ?? 1) - 1] ?? "";

/** Give the numbers in a block their names. @param {Element} part @param {Turn} turn @param {Record<string, string>} labels */
export function nameSources(part, turn, labels) {
  for (const chip of /** @type {NodeListOf<HTMLElement>} */ (part.querySelectorAll(".mark[data-source]"))) {
    const source = sourceOf(turn, chip);
    if (!source) continue;
    const title = [source.title || labels.document, placeOf(source, labels)].filter(Boolean).join(", ");
    chip.setAttribute("aria-label", labels.source.replace("{number}", String(source.number)).replace("{title}", () => title));
  }
}

/**
 * @param {HTMLElement} frame
 * @param {HTMLElement} scroller
 * @param {import("./draw.js").Drawing} drawing
 * @param {(name: string, detail: object) => void} fire
 */
export function showSources(frame, scroller, { options: { drawn }, labels }, fire) {
  const title = make("b", { dir: "auto" }), place = make("span"), quote = make("q", { dir: "auto" });
  const card = make("div", { className: "source", id: `source-${(cards += 1)}`, role: "tooltip", popover: "manual" }, title, place, quote);
  frame.append(card);
  /** @type {HTMLElement | undefined} */
  let shown;
  let leaving = 0;
  const hide = () => {
    clearTimeout(leaving);
    shown?.removeAttribute("aria-describedby");
    shown = undefined;
    if (card.matches(":popover-open")) card.hidePopover();
  };
  /** @param {EventTarget | null} target @returns {HTMLElement | null} */
  const chipAt = (target) => (target instanceof Element ? target.closest("[data-source]") : null);
  /** @param {HTMLElement} chip */
  const turnOf = (chip) => drawn.get(/** @type {Element} */ (chip.closest("[data-turn]")))?.turn;
  /** @param {HTMLElement} chip */
  const show = (chip) => {
    clearTimeout(leaving);
    const turn = turnOf(chip), source = turn && sourceOf(turn, chip);
    if (shown === chip || !source || !chip.matches(".mark")) return;
    hide();
    shown = chip;
    title.textContent = source.title || labels.document;
    place.textContent = placeOf(source, labels);
    quote.textContent = passageOf(chip, source);
    quote.hidden = !quote.textContent;
    chip.setAttribute("aria-describedby", card.id);
    card.showPopover();
    const { left, top, bottom } = chip.getBoundingClientRect(), { offsetWidth: width, offsetHeight: height } = card;
    card.style.left = `${Math.max(8, Math.min(left, innerWidth - width - 8))}px`;
    card.style.top = `${bottom + height + 8 < innerHeight ? bottom + 4 : Math.max(8, top - height - 4)}px`;
  };
  document.addEventListener("pointerover", ({ target, pointerType }) => {
    const chip = pointerType === "touch" || !frame.contains(/** @type {Node} */ (target)) ? null : chipAt(target);
    if (chip?.matches(".mark")) show(chip);
    else if (card.contains(target)) clearTimeout(leaving);
    else if (shown && shown !== document.activeElement) {
      clearTimeout(leaving);
      leaving = setTimeout(hide, LINGER_MS);
    }
  });
  scroller.addEventListener("focusin", ({ target }) => {
    const chip = chipAt(target);
    if (chip?.matches(".mark:focus-visible")) show(chip);
    else hide();
  });
  scroller.addEventListener("focusout", hide);
  scroller.addEventListener("scroll", hide, { passive: true });
  scroller.addEventListener("click", ({ target }) => {
    const chip = chipAt(target), turn = chip && turnOf(chip), source = turn && sourceOf(turn, chip);
    if (!chip || !source || !chip.matches("button")) return;
    hide();
    if (source.title) fire("source", { turn: turn.id, source, passage: passageOf(chip, source), opener: chip });
    else list(turn.id, source.number);
  });
  // Before Escape stops an answer, it closes what is open.
  window.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !shown) return;
    event.stopImmediatePropagation();
    hide();
  }, true);
  /** Show a source in the list below its answer. @param {string} id @param {number} number */
  const list = (id, number) => {
    /** @type {HTMLElement | null} */
    const item = scroller.querySelector(`[data-turn="${CSS.escape(id)}"] .bubble[data-kind="sources"] li[value="${number}"]`);
    const details = item?.closest("details");
    if (!item || !details) return;
    details.open = true;
    item.tabIndex = -1;
    item.focus({ preventScroll: true });
    item.scrollIntoView({ block: "nearest" });
  };
  return { list, /** Close the card of a number that is not there any more. */ keep: () => shown?.isConnected || hide() };
}
