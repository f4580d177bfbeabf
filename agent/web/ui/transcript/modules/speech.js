// Tells a screen reader what is new of the answer that is being written: finished sentences, the titles of steps,
// failures, questions and the end. The log itself is silent, because it would tell each token.
import { STEPS } from "./draw.js";
import { make } from "./elements.js";

const LINES = 12, WRITING_MS = 1000, ENDED_MS = 100;
const SILENT = ["user", "sources", "steps", "summary"];
const FINISHED = /^[\s\S]*(?:[.!?…](?=\s)|[。！？]|\n)/; // sentences
const LETTER = /[\p{L}\p{N}]/gu;

/** The words of an element: a formula as it was written, no numbers of sources, and nothing that the module has added. @param {Node} node @returns {string} */
function words(node) {
  if (node instanceof Text) return node.data;
  if (!(node instanceof Element) || node.matches(".mark, [data-own]")) return "";
  if (node.localName === "br") return "\n";
  return node.getAttribute("alttext") ?? [...node.childNodes].map(words).join("");
}

/** The place after so many letters and the signs that follow them. @param {string} text @param {number} count */
function after(text, count) {
  if (!count) return 0;
  let last = 0;
  for (const { index, 0: letter } of text.matchAll(LETTER)) {
    last = index + letter.length;
    if (!--count) break;
  }
  return last + (/^[^\s\p{L}\p{N}]*/u.exec(text.slice(last))?.[0].length ?? 0);
}

export class Speech {
  /** @param {import("./draw.js").Drawing} drawing @param {HTMLElement} region */
  constructor(drawing, region) {
    this.drawing = drawing;
    this.region = region;
    this.id = ""; // the last turn
    /** @type {{kind: string, state: string, part: number, letters: number}[]} */
    this.told = []; // what was told of each bubble: parts, and letters of the next one
    this.why = ""; // of a wait
    this.isTold = false; // the last turn is told
    this.timer = 0;
  }

  /** @param {string} text */
  say(text) {
    this.region.append(make("p", {}, text));
    while (this.region.children.length > LINES) this.region.children[0].remove();
  }

  /** The last turn. */
  view() {
    return this.drawing.views.get(/** @type {HTMLElement} */ (this.drawing.root.lastElementChild)?.dataset.turn ?? "");
  }

  /** Look soon at what was drawn. @param {boolean} isNew the last turn is told from its beginning */
  drawn(isNew = false) {
    const view = this.view(), isRunning = Boolean(view?.turn.is_running);
    if (view?.turn.id !== this.id) {
      if (!this.drawing.views.has(this.id)) this.region.replaceChildren(); // of another chat
      this.id = view?.turn.id ?? "";
      this.told = [];
      this.isTold = false;
      if (!isNew) this.news(); // what is there already is not told
    }
    this.isTold ||= isNew || isRunning;
    if (this.isTold) this.timer ||= window.setTimeout(() => this.look(), isRunning ? WRITING_MS : ENDED_MS);
  }

  look() {
    this.timer = 0;
    const { turn } = this.view() ?? {};
    if (!turn || !this.isTold) return;
    const news = this.news(), { labels } = this.drawing;
    if (news) this.say(news);
    if (turn.is_running) return;
    this.isTold = false;
    this.say(turn.bubbles.some(({ state }) => state === "waiting") ? labels.asks : labels.ready);
  }

  /** What was not told yet of the last turn. */
  news() {
    const view = this.view(), why = view?.turn.waiting?.why ?? "";
    const isSame = why.replace(/\d+/g, "") === this.why.replace(/\d+/g, ""); // seconds are counted down
    this.why = why;
    const all = (view?.drawn ?? []).map((one, number) => this.newsOf(one, number));
    return [...all, isSame ? "" : why].join(" ").replace(/\s+/g, " ").trim();
  }

  /** @param {import("./draw.js").Drawn} drawn @param {number} number */
  newsOf({ root, parts, bubble: { kind, state, inside } }, number) {
    const old = this.told[number]?.kind === kind ? this.told[number] : undefined;
    const told = (this.told[number] = old ?? { kind, state, part: 0, letters: 0 });
    const isNew = !old || told.state !== state && state !== "done";
    told.state = state;
    if (SILENT.includes(kind) || inside) return "";
    if (STEPS.includes(kind)) return isNew ? root.querySelector(".title")?.textContent ?? "" : "";
    const all = parts.children, isGrowing = state === "running";
    let said = "";
    for (let text; told.part < all.length; [told.part, told.letters] = [told.part + 1, 0]) {
      text = words(all[told.part]).trimEnd(); // HTML ends with a new line
      const isOpen = isGrowing && told.part === all.length - 1, from = after(text, told.letters);
      const more = isOpen ? FINISHED.exec(text.slice(from))?.[0] ?? "" : text.slice(from);
      said += ` ${more}`;
      if (!isOpen) continue;
      told.letters += more.match(LETTER)?.length ?? 0;
      break;
    }
    return said;
  }
}
