// The transcript of a chat, in a page of one's own or as the script of `Transcript` in Gradio.
import { save, showSources, textOfBlock } from "./blocks.js";
import { Drawing, STEPS } from "./draw.js";
import { imported, make, styled } from "./elements.js";

/**
 * Draw a transcript in this element. Its events are called `transcript:copy`, `transcript:choose`, `transcript:retry` and
 * so on, and their details have the turn's id.
 * @param {HTMLElement} element
 * @param {{labels: Record<string, string>, language?: string, actions?: string[], height?: string, diagrams?: Record<string, string>, python?: string,
 *   textOf?: (turn: string, part: string) => Promise<string>, render?: (text: string) => Promise<string[]>, canFix?: boolean}} options `textOf` gives the text of an "answer" or of a
 *   "message" as it was written. With it, a message is edited in its place: `transcript:edit` has the new text.
 *   `diagrams` has the addresses of the modules that draw "mermaid" and "vega-lite", which a frame without an origin must
 *   be able to load. `render` gives the blocks of a text in Markdown. `canFix`: a page sends the text of `transcript:fix`,
 *   which asks for an artifact without the errors that its preview has reported.
 */
export function mount(element, { labels, language, actions, height, textOf, ...shows }) {
  const turns = make("div", { className: "turns" });
  const earlier = make("button", { type: "button", className: "earlier", hidden: true, "data-print": labels.notPrinted }, labels.earlier);
  const scroller = make("div", { className: "transcript", role: "log", "aria-live": "off", "aria-label": labels.chat, tabIndex: 0 }, earlier, turns);
  const toEnd = make("button", { type: "button", className: "to-end", title: labels.toEnd, "aria-label": labels.toEnd, hidden: true });
  const said = make("div", { className: "said", role: "status", "aria-live": "polite", "aria-atomic": "false" });
  if (height) scroller.style.maxHeight = height;
  const frame = make("div", { className: "transcript-frame" }, scroller, toEnd, said);
  element.append(frame);
  const drawing = new Drawing(turns, labels, { language, actions, shows, hasTexts: Boolean(textOf) });
  const speech = new Speech(drawing, said);
  /** @param {string} name @param {object} detail */
  const fire = (name, detail) => element.dispatchEvent(new CustomEvent(`transcript:${name}`, { detail, bubbles: true }));
  /** @param {string} text */
  const say = (text) => speech.say(text);
  /** @param {string} text */
  const fail = (text) => {
    say(text);
    fire("failed", { text });
  };
  const place = followEnd(scroller, turns, toEnd, () => earlier.hidden || fire("earlier", { isClicked: false }));
  /** @type {import("./editing.js").Editing | undefined} */
  let editing;
  const edit = async (/** @type {string} */ id) => {
    const module = editing ? undefined : await imported(new URL("editing.js", import.meta.url).href);
    if (!editing && !module) return fail(labels.failed);
    editing ??= /** @type {import("./editing.js").Editing} */ (new module.Editing(
      drawing, { textOf: textOf ?? (async () => ""), fire, fail, bring: place.pin, release: place.release }));
    return editing.begin(id);
  };
  const { refocus } = listen(scroller, drawing, { fire, textOf, say, fail, edit });
  drawing.nest = (root, inner) => void listen(root, inner, { fire, say, fail, edit: () => {} });
  const sources = showSources(frame, scroller, drawing, fire);
  earlier.addEventListener("click", () => fire("earlier", { isClicked: true }));
  toEnd.addEventListener("click", () => fire("end", {}));
  new MutationObserver(() => fire("away", { isAway: !toEnd.hidden })).observe(toEnd, { attributeFilter: ["hidden"] });
  return {
    /**
     * Show these turns in place of what is shown.
     * @param {import("./draw.js").Turn[]} all
     * @param {{hasEarlier?: boolean, isNew?: boolean}} options `isNew`: a screen reader hears the last turn from its beginning
     */
    show(all, { hasEarlier = false, isNew = false } = {}) {
      const first = turns.firstElementChild?.getAttribute("data-turn");
      const draw = () => {
        earlier.hidden = !hasEarlier;
        drawing.show(all);
      };
      first && all[0]?.id !== first ? place.hold(draw) : draw();
      editing?.keep();
      refocus();
      sources.keep();
      speech.drawn(isNew);
    },
    /** Apply the edits of one turn, of the last one if no id is given. Returns the turn. @param {import("./draw.js").Edit[]} edits @param {string} [id] */
    apply(edits, id = turns.lastElementChild?.getAttribute("data-turn") ?? "") {
      drawing.apply(edits, id);
      sources.keep();
      speech.drawn();
      return drawing.view(id).turn;
    },
    /** Show the end, and follow it until the reader scrolls up. */
    toEnd: place.end,
    /** Follow the end no longer: what the reader has chosen or found keeps its place. */
    stay: place.stay,
    /** Edit the message of this turn. @param {string} id */
    edit,
    /** Close the box in which a message is edited, if the server has accepted what was sent. @param {boolean} isAccepted */
    edited: (isAccepted) => editing?.edited(isAccepted),
    /** Close that box. Returns what was typed. */
    leave() {
      const text = editing?.unsent();
      editing?.end();
      return text;
    },
    /** What was typed into the box of a message that is edited. */
    unsent: () => editing?.unsent() ?? "",
    /** Show a source in the list below its answer: those of a turn have numbers. */
    showSource: sources.list,
  };
}

/**
 * Run the component in Gradio.
 * @param {HTMLElement} element
 * @param {{props: any, trigger: (name: string, data: object) => void, watch: (name: string, then: () => void) => void, events: string[]}} gradio
 */
export async function connect(element, { props, trigger, watch, events }) {
  await styled(new URL("transcript.css", import.meta.url).href);
  const { show } = mount(element, props);
  for (const name of events) element.addEventListener(`transcript:${name}`, (event) => trigger(name, /** @type {CustomEvent} */ (event).detail));
  const draw = () => show(props.value ?? []);
  watch("value", draw);
  draw();
}

// What a click on a button of the transcript does. What only the server can do becomes an event.
/** Copy a text. That of a promise is asked for at once, because a click does not count for long. @param {string | Promise<string>} text */
async function copyText(text) {
  const { clipboard } = navigator;
  if (typeof text !== "string" && clipboard && "ClipboardItem" in globalThis) {
    const blob = text.then((said) => new Blob([said], { type: "text/plain" }));
    return clipboard.write([new ClipboardItem({ "text/plain": blob })]);
  }
  const said = await text;
  if (clipboard) return clipboard.writeText(said);
  const area = make("textarea", { value: said }), active = document.activeElement;
  document.body.append(area); // a page without TLS has no clipboard
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  if (active instanceof HTMLElement) active.focus({ preventScroll: true });
  if (!isCopied) throw new Error();
}

/**
 * @param {HTMLElement} root
 * @param {import("./draw.js").Drawing} drawing
 * @param {{fire: (name: string, detail: object) => void, textOf?: (turn: string, part: string) => Promise<string>,
 *   say: (text: string) => void, fail: (text: string) => void, edit: (turn: string) => void}} options
 */
function listen(root, drawing, { fire, textOf, say, fail, edit }) {
  const { labels } = drawing;
  /** @type {{id: string, part: string, number: number} | undefined} The version that was chosen, until it is shown. */
  let chosen;
  /** @param {HTMLElement} button @param {string | Promise<string>} text @param {(text: string, isFine: boolean) => void} tell */
  const copy = async (button, text, tell = (said, isFine) => (isFine ? say : fail)(said)) => {
    try {
      await copyText(text);
    } catch {
      return tell(await Promise.resolve(text).then(() => labels.copyFailed, ({ message }) => message), false);
    }
    tell(labels.copied, true);
    button.dataset.done = "1";
    setTimeout(() => delete button.dataset.done, 1500);
  };
  root.addEventListener("click", ({ target }) => {
    const element = /** @type {Element} */ (target);
    const folded = element.closest("summary")?.closest(".bubble");
    if (folded instanceof HTMLElement && element.closest("details")?.parentElement === folded) folded.dataset.touched = "1";
    const button = element.closest("[data-action]");
    if (!(button instanceof HTMLButtonElement)) return;
    const id = /** @type {HTMLElement} */ (button.closest("[data-turn]")).dataset.turn ?? "";
    const view = drawing.views.get(id), name = button.dataset.action ?? "";
    if (!view) return;
    const pre = button.closest("pre");
    if (name === "run" && pre) return void drawing.frames.run(pre, { fire, fail });
    if (name === "preview" && pre) return void drawing.frames.open(pre, { fire, fail, copy });
    const text = textOfBlock(button);
    if (text !== undefined) return name === "save" ? save(button.value, new Blob([text], { type: "text/plain" })) : void copy(button, text);
    if (name === "steps") return drawing.turnRow(button, view);
    if (name === "edit" && textOf) return edit(id);
    const part = view.asked.contains(button) ? "message" : "answer";
    if (name === "copy") void copy(button, (part === "answer" ? view.turn.text : undefined) ?? textOf?.(id, part) ?? "");
    let more = {};
    if (name === "choose") more = { value: view.turn.buttons?.[Number(button.value)]?.value };
    if (name === "version") {
      more = { message: button.value, part };
      chosen = { id: button.value, part, number: [...(button.parentElement?.querySelectorAll("button") ?? [])].indexOf(button) };
    }
    fire(name, { turn: id, ...more });
  });
  return {
    /** Give the focus back to the arrow that has shown another version, or at an end to the other one. */
    refocus() {
      const view = drawing.views.get(chosen?.id ?? "");
      if (!chosen || !view) return;
      const arrows = [...(chosen.part === "message" ? view.asked : view.foot).querySelectorAll(".versions > button")];
      const arrow = /** @type {HTMLButtonElement | undefined} */ (arrows[chosen.number]?.matches(":disabled") ? arrows[1 - chosen.number] : arrows[chosen.number]);
      if (document.activeElement === document.body) arrow?.focus({ preventScroll: true });
      if (arrow) chosen = undefined;
    },
  };
}

// What a reader sees of the transcript. The newest line stays in view until the reader scrolls up. Shrinking content moves
// the view up, too, so a move counts as the reader's only after their input or while the content is still.
const EMPTY = 20; // px below the last answer, and above a row that moves up
const AROUND_BUTTON = 52; // px that the button to the end needs
const NEAR_END = 160; // px of a last line with what is below it: they are shown too if the view moves anyway
const INPUT_MS = 1500, STILL_MS = 300, TURN_MS = 500;

/**
 * @param {HTMLElement} scroller
 * @param {HTMLElement} content what grows in it
 * @param {HTMLElement} toEnd the button
 * @param {() => void} near called again and again while the reader is near the first line
 */
function followEnd(scroller, content, toEnd, near) {
  let follows = true, isHeld = false, top = scroller.scrollTop, settling = 0;
  let touched = -Infinity, turnedUp = -Infinity, changed = -Infinity;
  /** @type {Element | undefined} */
  let pinned; // it does not move: somebody types in it
  let returns = false; // the end is shown again when that element is gone, because the reader has not scrolled meanwhile
  const rest = () => scroller.scrollHeight - scroller.clientHeight - scroller.scrollTop;
  const offer = () => {
    const isHidden = follows || rest() <= EMPTY;
    if (toEnd.hidden !== isHidden) toEnd.hidden = isHidden;
  };
  const follow = (/** @type {boolean} */ yes) => {
    follows = yes && !pinned?.isConnected;
    scroller.style.overflowAnchor = follows ? "none" : ""; // the browser must not anchor to a line that is to move up
    offer();
  };
  const toTheEnd = () => {
    scroller.scrollTo({ top: scroller.scrollHeight, behavior: "instant" });
    top = scroller.scrollTop;
  };
  const end = () => {
    touched = turnedUp = -Infinity; // what the reader did before does not explain a later move of the view
    pinned = undefined;
    follow(true);
    toTheEnd();
  };
  // A busy page draws the next frame late, and tells of the scrolling that a change caused only then. What the layout of
  // that frame itself moves is known when the sizes are.
  const change = () => {
    changed = Infinity;
    settling ||= requestAnimationFrame(() => {
      changed = performance.now();
      settling = 0;
    });
  };
  const touch = () => (touched = performance.now());

  scroller.addEventListener("scroll", () => {
    const now = performance.now(), isUp = scroller.scrollTop < top - 1;
    if (rest() < 3) {
      if (now - turnedUp > TURN_MS) follow(true); // else it may be the page's own move, which came before the turn
    } else if (isUp && follows) {
      if (isHeld || now - touched < INPUT_MS || now - changed > STILL_MS) follow(false);
      else toTheEnd();
    }
    top = scroller.scrollTop;
    offer();
    if (!follows && !pinned?.isConnected && top < scroller.clientHeight) near();
  }, { passive: true });
  // The turn itself counts, because a busy page scrolls late, and text that comes before must not take the view down.
  scroller.addEventListener("wheel", ({ deltaY, ctrlKey }) => {
    if (ctrlKey) return; // the page is zoomed
    touch();
    returns = false;
    turnedUp = deltaY < 0 ? performance.now() : -Infinity;
    if (deltaY < 0 && scroller.scrollTop > 0) follow(false);
  }, { passive: true });
  scroller.addEventListener("touchmove", () => (returns = false), { passive: true });
  for (const kind of ["touchmove", "focusin"]) scroller.addEventListener(kind, touch, { passive: true });
  scroller.addEventListener("keydown", ({ target }) => {
    if (!/** @type {Element} */ (target).closest("input, textarea")) touch();
  });
  scroller.addEventListener("pointerdown", () => (isHeld = true));
  for (const kind of ["pointerup", "pointercancel", "pointermove"]) { // no "pointerup" comes of a scroll bar
    window.addEventListener(kind, (event) => (isHeld &&= /** @type {PointerEvent} */ (event).buttons > 0), { passive: true });
  }
  toEnd.addEventListener("click", end);

  // What the reader unfolds comes below the row that they clicked. The row stays where it is, or moves up as far as is
  // needed to show what was unfolded. Following goes on if the end is still in view then.
  const lastOf = (/** @type {Element} */ row) => {
    let last = row.closest(".bubble") ?? row;
    if (row.matches("summary")) return row.parentElement ?? row;
    for (let one = last.nextElementSibling; one?.matches(".step"); one = one.nextElementSibling) if (one.checkVisibility()) last = one;
    return last;
  };
  scroller.addEventListener("click", ({ target, isTrusted }) => {
    const row = /** @type {Element} */ (target).closest("details:not([open]) > summary, [aria-expanded=false]");
    if (!row || !isTrusted) return; // scripts turn folds, too
    follow(false);
    requestAnimationFrame(() => {
      const view = scroller.getBoundingClientRect();
      const hidden = lastOf(row).getBoundingClientRect().bottom + AROUND_BUTTON - view.bottom;
      const room = row.getBoundingClientRect().top - view.top - EMPTY, left = rest();
      if (hidden > 0 && room > 0) scroller.scrollTop += Math.min(left < hidden + NEAR_END ? left : hidden, room);
      top = scroller.scrollTop;
      if (rest() < 3) follow(true);
    });
  }, true);

  new MutationObserver(change).observe(content, { childList: true, subtree: true });
  const sizes = new ResizeObserver(() => { // the sizes are known then, so that this costs no layout of its own
    changed = Math.max(changed, performance.now());
    if (follows) toTheEnd();
    offer();
  });
  sizes.observe(content);
  sizes.observe(scroller);
  follow(true);
  return {
    /** Hold the place of what the reader sees while `draw` puts something above it. @param {() => void} draw */
    hold(draw) {
      const view = scroller.getBoundingClientRect().top;
      const seen = follows ? undefined : [...content.children].find((one) => one.getBoundingClientRect().bottom > view);
      const before = seen?.getBoundingClientRect().top ?? 0;
      draw();
      if (seen?.isConnected) scroller.scrollTop += seen.getBoundingClientRect().top - before;
      top = scroller.scrollTop;
    },
    /** Show the end, and follow it. */
    end,
    /** Follow the end no longer. */
    stay() {
      returns = false;
      follow(false);
    },
    /** Bring an element into view that must not move as long as it is there. @param {Element} element */
    pin(element) {
      returns ||= follows;
      pinned = element;
      follow(false);
      element.scrollIntoView({ block: "nearest", behavior: "instant" });
    },
    /** That element is gone. Following goes on if the end is in view, or was when the element came. */
    release() {
      pinned = undefined;
      if (returns) end();
      else if (rest() < 3) follow(true);
      returns = false;
    },
  };
}

// Tells a screen reader what is new of the answer that is being written: finished sentences, the titles of steps,
// failures, questions and the end. The log itself is silent, because it would tell each token.
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

class Speech {
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
