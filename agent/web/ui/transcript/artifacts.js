// Shows an artifact beside the chat, and on a narrow page over it: what code makes, the code, and how it differs from the
// version before. An artifact is a block of code of an answer, and its versions are the blocks of the same kind and title in
// other answers. The panel follows the block while it is written, and goes on to the next version. Loaded when it is first used.
import { codeOf, fileName, isGrowing, kindOf, save, titleOf, wholeBlock } from "./blocks.js";
import { difference, keysOf, plotOf, sorted, tableOf } from "./contents.js";
import { button, make, styled } from "./elements.js";
import { Preview } from "./preview.js";

/** @typedef {{fire: (name: string, detail: object) => void, fail: (text: string) => void, copy: (button: HTMLElement, text: string, tell?: (text: string, isFine: boolean) => void) => void}} Actions */
/** @typedef {{pre: HTMLElement, turn: string, kind: string, title: string}} Block */

/** @type {Record<string, string>} */
const NAMES = { csv: "CSV", html: "HTML", markdown: "Markdown", mermaid: "Mermaid", svg: "SVG", "vega-lite": "Vega-Lite" };
const LOOK_MS = 150, DRAW_MS = 1500; // the panel follows the code this often, and draws what still grows
const ASK_MS = 4000, SIGNS_PER_MS = 5; // what the server must render waits longer, and the longer the more it is
const MOST_ROWS = 500, MOST_CELLS = 20_000, TELL_MS = 6000, TABS = /** @type {const} */ (["preview", "code", "changes"]);
const STEPS = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
const narrow = matchMedia("(max-width: 999.98px)");
let count = 0;

/** What can be shown in a transcript, in its order. @param {Element} root @returns {Block[]} */
const blocksOf = (root) => /** @type {HTMLElement[]} */ ([...root.querySelectorAll("pre:has(> .tools > [data-action=preview])")])
  .map((pre) => ({ pre, turn: /** @type {HTMLElement} */ (pre.closest("[data-turn]")).dataset.turn ?? "", kind: kindOf(pre), title: titleOf(pre) }));

class Panel {
  /** @param {import("./blocks.js").Frames} frames @param {Element} root @param {Actions} actions */
  constructor(frames, root, actions) {
    this.frames = frames;
    this.root = root;
    this.actions = actions;
    const { labels } = frames, id = `artifact-${(count += 1)}`;
    /** @type {Block | undefined} */
    this.block = undefined;
    /** @type {Block[]} */
    this.versions = [];
    this.key = "";
    this.isLast = true; // the newest version is shown, and the next one will be
    this.tab = "preview";
    this.isChosen = false; // by the reader, so that no end of the code changes it
    this.drawn = "";
    this.paged = ""; // of which artifact the page below is
    this.timer = this.later = /** @type {any} */ (undefined);
    this.sort = { column: -1, isUp: true };
    this.title = make("h2", { id, dir: "auto" });
    this.kind = make("span", { className: "kind" });
    this.older = this.button("version", labels.older, () => this.go(-1));
    this.newer = this.button("version", labels.newer, () => this.go(1));
    this.number = make("span", { className: "count" });
    this.copies = this.button("code", labels.code, () => this.actions.copy(this.copies, this.text, (text, isFine) => this.tell(text, isFine)));
    this.saves = this.button("save", "", () => save(this.saves.value, new Blob([this.text], { type: "text/plain" })));
    this.wide = this.button("full", labels.full, () => void (document.fullscreenElement ? document.exitFullscreen() : this.panel.requestFullscreen().catch(() => this.tell(labels.failed))));
    this.wide.hidden = !document.fullscreenEnabled;
    this.tabs = make("div", { role: "tablist", "aria-labelledby": id }, ...TABS.map((name) => {
      const tab = make("button", { type: "button", role: "tab", id: `${id}-${name}`, "aria-controls": `${id}-place`, value: name }, labels[name === "code" ? "wideCode" : name]);
      tab.addEventListener("click", () => this.choose(name));
      return tab;
    }));
    this.paper = make("div", { className: "paper" });
    this.page = make("div", { className: "page" });
    this.code = make("pre", { className: "listing", dir: "ltr" });
    this.place = make("div", { className: "place", id: `${id}-place`, role: "tabpanel", tabIndex: 0 }, this.paper, this.page, this.code);
    this.said = make("p", {});
    this.told = make("p", {});
    this.fixes = make("button", { type: "button", className: "fix", hidden: !frames.options.canFix }, labels.fix);
    this.note = make("div", { className: "note", role: "status" });
    this.panel = make("section", { className: "artifact transcript-frame", "aria-labelledby": id },
      make("header", {}, this.title, this.kind, this.copies, this.saves, this.wide, this.button("close", labels.close, () => this.close())),
      make("nav", {}, this.tabs, make("span", { className: "versions" }, this.older, this.number, this.newer)), this.place, this.note);
    this.preview = new Preview(this.paper, frames, {
      source: () => this.block && this.tab === "preview" ? { kind: this.block.kind, text: this.text, isGrowing: isGrowing(this.block.pre) } : undefined,
      says: (errors) => this.say(errors),
      leaves: () => this.close(),
    });
    this.listen();
  }

  /** @param {string} name @param {string} label @param {() => void} act @returns {HTMLButtonElement} */
  button(name, label, act) {
    const made = button(name, label);
    made.addEventListener("click", act);
    return made;
  }

  listen() {
    this.tabs.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      const all = this.offered(), by = STEPS[/** @type {keyof typeof STEPS} */ (event.key)];
      if (by === undefined) return;
      event.preventDefault();
      this.choose(all[Math.max(0, Math.min(all.length - 1, all.indexOf(this.tab) + by))]);
      this.tabs.querySelector("[aria-selected=true]")?.focus();
    });
    this.panel.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (event.key !== "Escape" || document.fullscreenElement) return;
      event.stopPropagation();
      this.close();
    });
    this.fixes.addEventListener("click", () => this.fix());
    this.follower = new MutationObserver(() => (this.timer ??= setTimeout(() => this.look(), LOOK_MS)));
    this.cover = () => {
      for (const one of document.body.children) if (one !== this.panel) /** @type {HTMLElement} */ (one).inert = this.panel.isConnected && narrow.matches;
    };
    narrow.addEventListener("change", this.cover);
  }

  get text() {
    return this.block ? codeOf(this.block.pre) : "";
  }

  offered() {
    return /** @type {readonly string[]} */ (TABS).filter((name) => name !== "changes" || this.older.disabled === false);
  }

  /** @param {HTMLElement} pre */
  open(pre) {
    const all = blocksOf(this.root), at = all.findIndex((one) => one.pre === pre);
    this.block = all[at];
    this.key = keysOf(all)[at];
    this.isLast = keysOf(all).lastIndexOf(this.key) === at;
    this.isChosen = false;
    this.drawn = "";
    this.rest();
    this.tab = ["html", "markdown"].includes(this.block.kind) && isGrowing(pre) ? "code" : "preview";
    this.sort = { column: -1, isUp: true };
    document.body.append(this.panel);
    document.documentElement.dataset.artifact = "";
    this.follower?.observe(this.root, { childList: true, subtree: true, characterData: true, attributes: true, attributeFilter: ["data-state", "data-title"] });
    this.cover?.();
    this.preview.end();
    this.look();
    this.tabs.querySelector("[aria-selected=true]")?.focus({ preventScroll: true });
  }

  close() {
    this.follower?.disconnect();
    clearTimeout(this.timer);
    this.rest();
    this.told.remove();
    this.preview.end();
    const hadFocus = this.panel.contains(document.activeElement) || document.activeElement === document.body;
    this.panel.remove();
    this.cover?.();
    delete document.documentElement.dataset.artifact;
    const eye = this.block?.pre.querySelector(":scope > .tools > [data-action=preview]");
    if (hadFocus) (eye instanceof HTMLElement && eye.isConnected ? eye : /** @type {HTMLElement | null} */ (this.root.parentElement))?.focus({ preventScroll: true });
    this.block = undefined;
  }

  /** End the pause of what still grows. */
  rest() {
    clearTimeout(this.later);
    this.later = undefined;
  }

  /** Find the block and its versions in the transcript, and show what has changed. */
  look() {
    clearTimeout(this.timer);
    this.timer = undefined;
    const all = blocksOf(this.root), known = all.findIndex(({ pre }) => pre === this.block?.pre);
    if (known >= 0) this.key = keysOf(all)[known]; // its title can have grown
    const keys = keysOf(all), versions = (this.versions = all.filter((_, at) => keys[at] === this.key));
    const at = versions.findIndex(({ turn }) => turn === this.block?.turn);
    if (at < 0) return this.close(); // another chat is shown, or another branch
    this.show(this.isLast ? versions.length - 1 : at);
  }

  /** @param {number} by */
  go(by) {
    const at = this.versions.findIndex(({ pre }) => pre === this.block?.pre) + by;
    if (!this.versions[at]) return;
    this.isLast = at === this.versions.length - 1;
    this.show(at);
    const [pressed, other] = by < 0 ? [this.older, this.newer] : [this.newer, this.older];
    if (pressed.disabled) other.focus();
  }

  /** @param {string} tab */
  choose(tab) {
    this.tab = tab;
    this.isChosen = true;
    this.look();
  }

  /** @param {number} at the number of the version */
  show(at) {
    const block = (this.block = this.versions[at]), { labels } = this.frames, many = this.versions.length, { kind, title, pre } = block;
    const ends = pre.dataset.language && !title ? pre.dataset.language : kind, name = fileOf(title, fileName(ends));
    this.title.textContent = title || NAMES[kind];
    this.kind.textContent = title ? NAMES[kind] : "";
    this.number.textContent = many > 1 ? `${at + 1}/${many}` : "";
    [this.older.disabled, this.newer.disabled] = [at === 0, at === many - 1];
    this.older.hidden = this.newer.hidden = many === 1;
    this.saves.value = name;
    this.saves.title = labels.save.replace("{name}", () => name);
    this.saves.setAttribute("aria-label", this.saves.title);
    const grows = isGrowing(pre);
    this.panel.toggleAttribute("data-growing", grows);
    if (!grows && !this.isChosen) this.tab = "preview";
    if (!this.offered().includes(this.tab)) this.tab = "preview";
    for (const tab of this.tabs.children) {
      const isShown = tab.value === this.tab;
      tab.hidden = !this.offered().includes(tab.value);
      tab.setAttribute("aria-selected", String(isShown));
      tab.tabIndex = isShown ? 0 : -1;
      if (isShown) this.place.setAttribute("aria-labelledby", tab.id);
    }
    this.draw(block, grows, at);
  }

  /** Draw the tab, if there is something new. @param {Block} block @param {boolean} grows @param {number} at */
  draw({ pre, kind, turn }, grows, at) {
    const isPreview = this.tab === "preview", isFramed = !["csv", "markdown"].includes(kind);
    this.paper.hidden = !isPreview || !isFramed;
    this.page.hidden = !isPreview || isFramed;
    this.code.hidden = isPreview;
    const { text } = this, drawn = JSON.stringify([turn, kind, this.tab, text, grows]), before = this.drawn;
    if (drawn === before) return;
    if (this.tab === "code") this.follow(pre, text, grows);
    else if (this.tab === "changes") this.compare(codeOf(this.versions[at - 1].pre), text);
    else if (isFramed) this.preview.draw(grows && this.preview.frame ? undefined : 0);
    else if (grows && this.later) return;
    else {
      this.rest();
      const pause = kind === "csv" ? DRAW_MS : ASK_MS + text.length / SIGNS_PER_MS;
      if (grows) this.later = setTimeout(() => ((this.later = undefined), this.block && this.look()), pause);
      if (this.paged !== this.key) this.page.replaceChildren();
      this.paged = this.key;
      if (kind === "csv") this.sheet(text);
      else void this.render(text);
    }
    if (!isPreview || !isFramed) this.say([]);
    this.drawn = drawn;
  }

  /** Show the code in its colours, or more of it. @param {HTMLElement} pre @param {string} text @param {boolean} grows */
  follow(pre, text, grows) {
    const { code } = this, isBelow = code.scrollHeight - code.scrollTop - code.clientHeight < 40, only = code.firstChild;
    if (!grows) code.replaceChildren(...wholeBlock(pre).flatMap((part) => [...(part.querySelector("code")?.cloneNode(true).childNodes ?? [text])]));
    else if (code.childNodes.length === 1 && only instanceof Text && text.startsWith(only.data)) only.appendData(text.slice(only.data.length));
    else code.replaceChildren(text);
    if (grows && isBelow) code.scrollTop = code.scrollHeight;
  }

  /** Show how the code differs from that of the version before. @param {string} old @param {string} text */
  compare(old, text) {
    const { labels } = this.frames, rows = difference(old, text);
    const isSame = rows.every(([sign]) => sign === "…");
    this.code.replaceChildren(...(isSame ? [labels.same] : rows.map(([sign, line]) => {
      if (sign === "…") return make("span", { className: "gap" }, labels.gap.replace("{count}", line));
      return make(sign === "-" ? "del" : sign === "+" ? "ins" : "span", {}, `${sign} ${line}`);
    })));
  }

  /** Show a text in Markdown as the chat does. @param {string} text */
  async render(text) {
    const { key } = this, said = await this.frames.options.render?.(text).catch((/** @type {Error} */ error) => error);
    if (!said || this.text !== text || this.key !== key) return;
    if (said instanceof Error) {
      this.page.replaceChildren(); // it can be of another version
      const { drawn } = this;
      setTimeout(() => this.drawn === drawn && (this.drawn = ""), ASK_MS); // the next look tries again
      return this.tell(said.message);
    }
    const blocks = said;
    const parts = blocks.map((html) => make("div", { className: "part", dir: "auto", innerHTML: html }));
    this.page.replaceChildren(make("div", { className: "parts" }, ...parts));
    for (const link of this.page.querySelectorAll("a[href^=http]")) link.target = "_blank";
  }

  /** Show a table, which its reader can sort, and its plot. @param {string} text */
  sheet(text) {
    const { labels } = this.frames, table = tableOf(text), { column, isUp } = this.sort;
    const order = column < 0 ? table.rows.map((_, at) => at) : sorted(table, column, isUp);
    const head = table.head.map((name, at) => {
      const sorts = make("button", { type: "button" }, name || String(at + 1));
      sorts.addEventListener("click", () => {
        this.sort = { column: at, isUp: column !== at || !isUp };
        this.sheet(text);
        this.page.querySelectorAll("th > button")[at]?.focus();
      });
      return make("th", { scope: "col", "aria-sort": column === at ? (isUp ? "ascending" : "descending") : "none", className: table.isNumber[at] ? "at-right" : "" }, sorts);
    });
    const most = Math.min(MOST_ROWS, Math.floor(MOST_CELLS / Math.max(1, table.head.length)));
    const rows = order.slice(0, most).map((at) => make("tr", {}, ...table.rows[at].map((cell, one) => make("td", { className: table.isNumber[one] ? "at-right" : "" }, cell))));
    const plot = plotOf(table, getComputedStyle(this.panel).color);
    const parts = [make("div", { className: "part" }, make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows)))];
    if (plot) parts.unshift(make("img", { src: `data:image/svg+xml,${encodeURIComponent(plot)}`, alt: labels.plot.replace("{names}", () => table.head.filter((_, at) => table.isNumber[at]).join(", ")) }));
    if (order.length > most) parts.push(make("p", { className: "rest" }, labels.rows.replace("{count}", String(most))));
    this.page.replaceChildren(...parts);
  }

  /** Say what the preview reports. @param {string[]} errors */
  say(errors) {
    const text = errors.length ? this.frames.labels.previewFailed.replace("{why}", () => errors.at(-1) ?? "") : "";
    if (this.said.textContent !== text) this.said.textContent = text;
    if (errors.length && !this.said.isConnected) this.note.prepend(this.said, this.fixes);
    else if (!errors.length) [this.said, this.fixes].forEach((one) => one.remove());
  }

  /** Say what has happened, for a while. The page behind the panel can be covered. @param {string} text @param {boolean} isFine */
  tell(text, isFine = false) {
    clearTimeout(this.telling);
    this.told.className = isFine ? "fine" : "";
    this.told.textContent = text;
    this.note.append(this.told);
    this.telling = setTimeout(() => this.told.remove(), TELL_MS);
  }

  /** Ask the model for the code without the errors. */
  fix() {
    const { labels } = this.frames, { errors } = this.preview, name = this.block?.title || NAMES[this.block?.kind ?? ""];
    const ticks = "`".repeat(1 + Math.max(2, ...errors.flatMap((one) => one.match(/`+/g) ?? []).map(({ length }) => length)));
    this.actions.fire("fix", { text: `${labels.fixText.replace("{name}", () => name)}\n\n${ticks}\n${errors.join("\n")}\n${ticks}\n\n${labels.fixAsk}` });
    if (narrow.matches) this.close();
  }
}

/** The name of a file with this title and the ending of `usual`. @param {string} title @param {string} usual */
function fileOf(title, usual) {
  const ending = usual.slice(usual.indexOf(".")), name = title.replace(/[^\p{L}\p{N}._-]+/gu, " ").replace(/^[\s.]+|[\s.]+$/g, "").slice(0, 60);
  return !name ? usual : name.toLowerCase().endsWith(ending) ? name : name + ending;
}

/** @type {Panel | undefined} */
let panel;
/** Show the artifact of this block. @param {HTMLElement} pre @param {import("./blocks.js").Frames} frames @param {Actions} actions */
export async function open(pre, frames, actions) {
  await styled(new URL("artifacts.css", import.meta.url).href);
  const root = [...document.querySelectorAll(".turns")].find((one) => one.contains(pre));
  if (!root) return;
  if (panel?.block?.pre === pre) return panel.close();
  if (panel?.root !== root) panel?.close();
  if (panel?.root !== root) panel = new Panel(frames, root, actions);
  panel.open(pre);
}
