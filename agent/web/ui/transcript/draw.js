// Draws turns as elements. Only the blocks that edits name are touched, and a block that grows keeps its nodes, so that
// the reader's selection, folds and place stay. The HTML of blocks and captions is made by the server from an allow list.
import { Frames, nameSources } from "./blocks.js";
import { button, imported, make } from "./elements.js";

// The turns as plain values: what changes one state into the next. agent/rendering/bubbles.py says what turns, bubbles and
// edits are, and `changes` returns what its `edits` returns.
/**
 * @typedef {{kind: string, state: string, blocks: string[], title?: string, seconds?: number, inside?: boolean,
 *   steps?: number}} Bubble
 * @typedef {{number: number, title: string, url: string, page: number | null, passages: string[]}} Source
 * @typedef {{ids: string[], number: number}} Versions
 * @typedef {{id: string, bubbles: Bubble[], is_running: boolean, can_steer?: boolean, steered?: string[], caption?: string, text?: string,
 *   waiting?: {why: string, seconds: number, number: number}, buttons?: {label: string, value: object}[],
 *   can_branch?: boolean, is_untyped?: boolean, kept?: string, sources?: Source[], question_versions?: Versions, answer_versions?: Versions,
 *   columns?: Turn[], name?: string, is_chosen?: boolean}} Turn
 * @typedef {any[]} Edit
 */

/**
 * The number of the first block that differs.
 * @param {string[]} old
 * @param {string[]} blocks
 */
export function firstDifference(old, blocks) {
  const most = Math.min(old.length, blocks.length);
  let number = 0;
  while (number < most && old[number] === blocks[number]) number += 1;
  return number;
}

/**
 * The length of what two texts begin with, without half a character at its end.
 * @param {string} one
 * @param {string} other
 */
function sameLength(one, other) {
  const most = Math.min(one.length, other.length);
  let length = 0;
  while (length < most && one[length] === other[length]) length += 1;
  return length - (/[\ud800-\udbff]/.test(one[length - 1] ?? "") ? 1 : 0);
}

/**
 * The edits that change the blocks of a bubble.
 * @param {number} number
 * @param {string[]} old
 * @param {string[]} blocks
 * @returns {Edit[]}
 */
function blockEdits(number, old, blocks) {
  const edits = [];
  let first = firstDifference(old, blocks);
  if (first === Math.max(old.length, blocks.length)) return [];
  const same = sameLength(old[first] ?? "", blocks[first] ?? "");
  if (same) {
    edits.push(["tail", number, first, old[first].length - same, blocks[first].slice(same)]);
    first += 1;
  }
  const isSame = old.length === blocks.length && blocks.slice(first).every((block, at) => block === old[first + at]);
  if (!isSame) edits.push(["blocks", number, first, blocks.slice(first)]);
  return edits;
}

/**
 * True if two objects are the same but for these keys.
 * @param {Record<string, any>} one
 * @param {Record<string, any>} other
 * @param {string[]} apart
 */
function equalBut(one, other, ...apart) {
  const keys = new Set([...Object.keys(one), ...Object.keys(other)]);
  for (const key of apart) keys.delete(key);
  return [...keys].every((name) => name in one === name in other && JSON.stringify(one[name]) === JSON.stringify(other[name]));
}

/** A copy that shares nothing with a value that may change. @template T @param {T} value @returns {T} */
const copy = (value) => JSON.parse(JSON.stringify(value));

/**
 * The edits that change one state of a turn into the next one.
 * @param {Turn} old
 * @param {Turn} turn
 * @returns {Edit[]}
 */
export function changes(old, turn) {
  const edits = [];
  for (const [number, bubble] of turn.bubbles.entries()) {
    const last = old.bubbles[number];
    if (!last || !equalBut(last, bubble, "blocks")) edits.push(["bubble", number, copy(bubble)]);
    else edits.push(...blockEdits(number, last.blocks, bubble.blocks));
  }
  if (old.bubbles.length > turn.bubbles.length) edits.push(["cut", turn.bubbles.length]);
  const columns = old.columns ?? [], others = turn.columns ?? [], isSameNumber = columns.length === others.length;
  if (isSameNumber) columns.forEach((column, number) => {
    const made = changes(column, others[number]);
    if (made.length) edits.push(["column", number, made]);
  });
  const { bubbles, columns: given, ...fields } = turn;
  if (!isSameNumber) edits.push(["turn", copy({ ...fields, columns: others })]);
  else if (!equalBut(old, turn, "bubbles", "columns")) edits.push(["turn", copy(fields)]);
  return edits;
}

/**
 * The turn after the edits. The old one stays as it is.
 * @param {Turn} turn
 * @param {Edit[]} edits
 * @returns {Turn}
 */
export function applied(turn, edits) {
  let next = { ...turn, bubbles: [...turn.bubbles] };
  for (const [kind, number, first, given, html] of edits) {
    const { bubbles } = next;
    if (kind === "bubble") bubbles[number] = first;
    else if (kind === "blocks") bubbles[number] = { ...bubbles[number], blocks: [...bubbles[number].blocks.slice(0, first), ...given] };
    else if (kind === "tail") {
      const blocks = [...bubbles[number].blocks];
      blocks[first] = blocks[first].slice(0, blocks[first].length - given) + html;
      bubbles[number] = { ...bubbles[number], blocks };
    }
    else if (kind === "cut") bubbles.length = number;
    else if (kind === "column") next.columns = (next.columns ?? []).map((one, at) => (at === number ? applied(one, first) : one));
    else if (kind === "turn") next = { ...(next.columns && { columns: next.columns }), ...number, bubbles };
  }
  return next;
}

/**
 * A key for each bubble that stays the same while others come before it: the number of those of its kind, and for a
 * result the key of its call.
 * @param {Bubble[]} bubbles
 */
export function keys(bubbles) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  let home = "";
  return bubbles.map(({ kind, inside }) => {
    const name = inside ? `${home} ${kind}` : kind, count = counts.get(name) ?? 0, key = `${name} ${count}`;
    counts.set(name, count + 1);
    if (!inside) home = key;
    return key;
  });
}

/**
 * The text that a tail adds inside the elements that it ends, as HTML without tags, and the number of these elements;
 * nothing if it does more.
 * @param {string} dropped what it replaces
 * @param {string} html
 */
export function addedText(dropped, html) {
  const text = html.slice(0, Math.max(0, html.length - dropped.length));
  if (!/^(?:<\/\w+>\n?)+$/.test(dropped) || text.includes("<") || text + dropped !== html) return undefined;
  return { text, depth: dropped.split("</").length - 1 };
}

// The elements.
/** @typedef {{key: string, root: HTMLElement, fold?: HTMLElement, parts: HTMLElement, title: HTMLElement, time: HTMLElement,
 *   bubble: Bubble, since: number}} Drawn `fold` opens and closes: a `details`, or the button of a row of steps */
/** @typedef {{turn: Turn, root: HTMLElement, drawn: Drawn[], foot: HTMLElement, asked: HTMLElement, wait: HTMLElement,
 *   waits?: {number: number, since: number}}} View */

export const STEPS = ["reasoning", "tool_call", "tool_call_result"];
const NEVER_FOLDED = ["failed", "refused", "waiting"];
const LEAST_WAIT = 3; // seconds
// The attributes that this page adds to the HTML of blocks.
const OWN = ["open", "role", "tabindex", "title", "style", "aria-label", "aria-describedby", "target"];

/**
 * Change the children of `old` into those of `next`, and keep each node that has only grown. What the module has added
 * (`data-own`) and folds that the reader has opened stay.
 * @param {Element} old
 * @param {ParentNode} next
 */
function morph(old, next) {
  const nodes = [...old.childNodes].filter((node) => !(node instanceof HTMLElement && node.dataset.own));
  const news = [...next.childNodes];
  news.forEach((to, number) => {
    const from = nodes[number];
    if (!from) old.insertBefore(to, nodes.length ? nodes[nodes.length - 1].nextSibling : old.firstChild) && nodes.push(to);
    else if (from.nodeName !== to.nodeName) (from.replaceWith(to), (nodes[number] = to));
    else if (from instanceof Text && to instanceof Text) {
      if (from.data === to.data) return;
      if (to.data.startsWith(from.data)) from.appendData(to.data.slice(from.data.length));
      else from.data = to.data;
    } else if (from instanceof Element && to instanceof Element && !from.isEqualNode(to)) {
      for (const { name } of [...from.attributes]) {
        if (!to.hasAttribute(name) && !OWN.includes(name) && !name.startsWith("data-")) from.removeAttribute(name);
      }
      for (const { name, value } of to.attributes) if (from.getAttribute(name) !== value) from.setAttribute(name, value);
      morph(from, to);
    }
  });
  for (const node of nodes.slice(news.length)) node.remove();
}

/** Replace the children, but leave those that stay the same, and so the focus. @param {Element} parent @param {Element[]} next */
function fill(parent, next) {
  const old = [...parent.children];
  next.forEach((to, number) => {
    if (!old[number]) parent.append(to);
    else if (!old[number].isEqualNode(to)) old[number].replaceWith(to);
  });
  for (const left of old.slice(next.length)) left.remove();
}

/** Put a bubble behind another one, or before all others. @param {Element} home @param {Element} node @param {Element | undefined} before */
function put(home, node, before) {
  if (before ? before.nextElementSibling === node : node === home.querySelector(":scope > .bubble")) return;
  before ? before.after(node) : home.insertBefore(node, home.querySelector(":scope > .bubble, :scope > footer"));
}

/** Hide a step while its row is closed, unless it must be seen. @param {HTMLElement} node @param {Bubble} bubble @param {HTMLElement | undefined} row */
function setStep(node, { state }, row) {
  node.classList.toggle("step", Boolean(row));
  const isHidden = Boolean(row) && !NEVER_FOLDED.includes(state) && row?.getAttribute("aria-expanded") !== "true";
  if (node.hidden === isHidden) return;
  if (isHidden && node.contains(document.activeElement)) row?.focus({ preventScroll: true });
  node.hidden = isHidden;
}

/**
 * Add text at the end of a part, as this edit does. False if it does more than that.
 * @param {Element} part
 * @param {string} old the block before the edit
 * @param {Edit} edit
 */
function grow(part, old, [, , , count, html]) {
  const added = addedText(old.slice(old.length - count), html);
  /** @type {Element | undefined} */
  let place = part;
  for (let left = added?.depth ?? 0; place && left; left -= 1) {
    place = [...place.children].filter((child) => !(child instanceof HTMLElement && child.dataset.own)).at(-1);
  }
  if (!added || !(place?.lastChild instanceof Text)) return false;
  place.lastChild.appendData(make("template", { innerHTML: added.text }).content.textContent);
  return true;
}

/** @type {Promise<typeof import("./columns.js")> | undefined} */
let columns;
/** Load what draws columns, again and again. */
async function loaded() {
  for (let tries = 0; ; tries += 1) {
    const found = await imported(new URL("columns.js", import.meta.url).href);
    if (found) return found;
    await new Promise((then) => setTimeout(then, Math.min(30, 2 ** tries) * 1000));
  }
}

export class Drawing {
  /**
   * @param {HTMLElement} root where the turns are drawn
   * @param {Record<string, string>} labels
   * @param {{language?: string, actions?: string[], hasTexts?: boolean, shows?: Frames["options"], drawn?: WeakMap<Element, View>}} options
   *   `hasTexts`: a text can be asked for; `shows` is what can be shown of code; `drawn` has the views by their elements,
   *   also those of the drawings inside this one
   */
  constructor(root, labels, { language, actions = [], hasTexts = false, shows, drawn = new WeakMap() } = {}) {
    this.root = root;
    this.labels = labels;
    this.options = { language, shows, drawn };
    /** @type {((root: HTMLElement, drawing: Drawing) => void) | undefined} What listens to a drawing inside this one. */
    this.nest = undefined;
    this.frames = new Frames(labels, shows);
    this.actions = actions;
    this.hasTexts = hasTexts;
    this.number = new Intl.NumberFormat(language || undefined, { minimumFractionDigits: 1, maximumFractionDigits: 1 });
    /** @type {Map<string, View>} */
    this.views = new Map();
    this.clock = 0;
  }

  /** Draw these turns, and nothing of what has not changed. @param {Turn[]} turns */
  show(turns) {
    const ids = new Set(turns.map(({ id }) => id));
    for (const [id, { root }] of this.views) if (!ids.has(id)) (root.remove(), this.views.delete(id));
    turns.forEach((turn, number) => {
      const view = this.view(turn.id);
      const edits = changes(view.turn, turn);
      if (edits.length) this.draw(view, edits);
      if (this.root.children[number] !== view.root) this.root.insertBefore(view.root, this.root.children[number] ?? null);
    });
    this.running();
  }

  /** Say for the style whether an answer is being written. */
  running() {
    this.root.toggleAttribute("data-running", [...this.views.values()].some(({ turn }) => turn.is_running));
  }

  /** Draw the edits of the turn with this id, which begins with them if it is new. @param {Edit[]} edits @param {string} id */
  apply(edits, id) {
    const view = this.view(id);
    if (!view.root.isConnected) this.root.append(view.root);
    this.draw(view, edits);
  }

  /** @param {string} id @returns {View} */
  view(id) {
    let view = this.views.get(id);
    if (!view) {
      const foot = make("footer"), asked = make("footer"), wait = make("div", { className: "waiting", hidden: true },
        make("i", { role: "img", "aria-label": this.labels.wait }), make("span", { className: "why" }), make("span", { className: "time" }));
      const root = make("div", { className: "turn", "data-turn": id }, wait, foot);
      view = { turn: { id, bubbles: [], is_running: false }, drawn: [], foot, asked, wait, root };
      this.views.set(id, view);
      this.options.drawn.set(root, view);
    }
    return view;
  }

  /**
   * Draw the edits. A bubble keeps its elements while others come before it, so that what the reader has opened and
   * where the focus is stay.
   * @param {View} view @param {Edit[]} edits
   */
  draw(view, edits) {
    const isWide = Boolean(view.turn.columns?.length);
    if (edits.every(([kind]) => kind === "column")) {
      view.turn = applied(view.turn, edits);
      return this.columns(view);
    }
    if (edits.every(([kind]) => kind === "blocks" || kind === "tail")) {
      for (const edit of edits) {
        const [kind, number, first] = edit, drawn = view.drawn[number], part = drawn.parts.children[first];
        const before = drawn.bubble.blocks[first], { bubbles } = (view.turn = applied(view.turn, [edit]));
        if (kind === "tail" && part && grow(part, before, edit)) drawn.bubble = bubbles[number];
        else this.blocks(drawn, bubbles[number], view.turn);
      }
      return;
    }
    const { bubbles } = (view.turn = applied(view.turn, edits));
    const old = new Map(view.drawn.map((drawn) => [drawn.key, drawn]));
    view.drawn = keys(bubbles).map((key, number) => {
      const drawn = old.get(key) ?? this.created(bubbles[number], key);
      old.delete(key);
      if (drawn.bubble !== bubbles[number]) this.bubble(drawn, bubbles[number], view.turn);
      return drawn;
    });
    for (const { root } of old.values()) root.remove();
    this.arrange(view);
    this.waiting(view);
    this.foot(view);
    if (isWide || view.turn.columns?.length) this.columns(view);
    this.running();
    this.tick();
  }

  /** Draw the answers of several models. @param {View} view */
  columns(view) {
    (columns ??= loaded()).then(({ draw }) => draw(this, view));
  }

  /** @param {Bubble} bubble @param {string} key @returns {Drawn} */
  created({ kind }, key) {
    const parts = make("div", { className: "parts" }), title = make("span", { className: "title" }), time = make("span", { className: "time" });
    const root = make("div", { className: "bubble", "data-kind": kind });
    const fold = STEPS.includes(kind) ? make("details", {}, make("summary", {}, title, time), parts)
      : kind === "steps" ? make("button", { type: "button", "data-action": "steps", "aria-expanded": "false" }, title, time) : undefined;
    root.append(fold ?? parts);
    return { key, root, fold, parts, title, time, bubble: { kind, state: "", blocks: [] }, since: 0 };
  }

  /** Draw what has changed of a bubble. @param {Drawn} drawn @param {Bubble} bubble @param {Turn} turn */
  bubble(drawn, bubble, turn) {
    const { bubble: old, root, title } = drawn, isNew = old.state === "";
    const name = bubble.title || (bubble.kind === "reasoning" ? this.labels.reasoning : "");
    if (title.textContent !== name || old.state !== bubble.state) {
      const end = bubble.kind === "steps" && bubble.state === "failed" ? name.lastIndexOf(" · ") + 1 : 0; // how many failed
      title.replaceChildren(...(end ? [name.slice(0, end), make("span", { className: "failed" }, name.slice(end))] : [name]));
    }
    if (isNew || bubble.seconds !== old.seconds) drawn.since = performance.now() - (bubble.seconds ?? 0) * 1000;
    this.blocks(drawn, bubble, turn);
    this.time(drawn);
    if (old.state === bubble.state) return;
    root.dataset.state = bubble.state;
    const isRunning = bubble.state === "running";
    if (!root.dataset.touched) this.fold(drawn, bubble.kind === "tool_call_result" ? Boolean(bubble.inside) : bubble.kind !== "tool_call" && isRunning);
  }

  /** Draw the blocks of a bubble from the first one that differs. @param {Drawn} drawn @param {Bubble} bubble @param {Turn} turn */
  blocks(drawn, bubble, turn) {
    const { parts } = drawn, { children } = parts, { blocks } = bubble;
    for (let at = firstDifference(drawn.bubble.blocks, blocks); at < blocks.length; at += 1) {
      const template = make("template", { innerHTML: blocks[at] });
      if (children[at]) morph(children[at], template.content);
      else parts.append(make("div", { className: "part", dir: "auto" }, template.content));
      this.frames.complete(/** @type {HTMLElement} */ (children[at]), STEPS.includes(bubble.kind));
      nameSources(children[at], turn, this.labels);
    }
    while (children.length > blocks.length) children[children.length - 1].remove();
    drawn.bubble = bubble;
  }

  /** Open or close a fold. The focus does not get lost in it. @param {Drawn} drawn @param {boolean} isOpen */
  fold({ fold, parts }, isOpen) {
    if (fold instanceof HTMLDetailsElement && fold.open !== isOpen) {
      if (!isOpen && parts.contains(document.activeElement)) /** @type {HTMLElement} */ (fold.firstElementChild).focus({ preventScroll: true });
      fold.open = isOpen;
    } else if (fold && fold.localName === "button") fold.setAttribute("aria-expanded", String(isOpen));
  }

  /** Open or close the row of steps with this button, as its reader wants. @param {HTMLElement} button @param {View} view */
  turnRow(button, view) {
    const drawn = view.drawn.find(({ fold }) => fold === button);
    if (!drawn) return;
    drawn.root.dataset.touched = "1";
    this.fold(drawn, button.getAttribute("aria-expanded") !== "true");
    this.arrange(view);
  }

  /** @param {Drawn} drawn */
  time({ time, bubble, since }) {
    const isRunning = bubble.state === "running";
    if (!isRunning && bubble.title) return void (time.textContent && (time.textContent = "")); // it says how long it took
    if (bubble.seconds === undefined) return;
    const seconds = isRunning ? Math.floor((performance.now() - since) / 1000) : bubble.seconds;
    const text = seconds < 0.05 ? "" : this.labels.seconds.replace("{seconds}", isRunning ? String(seconds) : this.number.format(seconds));
    if (time.textContent !== text) time.textContent = text;
  }

  /** Say for what and how long the turn waits. @param {View} view */
  waiting(view) {
    const { turn, wait } = view, [, why, time] = wait.children, { waiting } = turn;
    const isHidden = !waiting && !(turn.is_running && !turn.columns?.length && turn.bubbles.every(({ kind }) => kind === "user"));
    if (wait.hidden !== isHidden) wait.hidden = isHidden;
    if (waiting && waiting.number !== view.waits?.number) view.waits = { number: waiting.number, since: performance.now() - waiting.seconds * 1000 };
    if (!waiting) view.waits = undefined;
    const seconds = view.waits ? Math.floor((performance.now() - view.waits.since) / 1000) : 0;
    const counted = seconds < LEAST_WAIT || waiting?.why ? "" : this.labels.waited.replace("{seconds}", String(seconds));
    const reason = waiting?.why ?? "";
    if (why.textContent !== reason) why.textContent = reason;
    if (time.textContent !== counted) time.textContent = counted;
  }

  /** Count the seconds of steps that run, and of waits. */
  tick() {
    const running = () => [...this.views.values()].filter(({ turn }) => turn.is_running);
    if (this.clock || !running().length) return;
    this.clock = setInterval(() => {
      const all = running();
      for (const view of all) {
        view.drawn.filter(({ bubble }) => bubble.state === "running").forEach((drawn) => this.time(drawn));
        this.waiting(view);
      }
      if (all.length && this.root.isConnected) return;
      clearInterval(this.clock);
      this.clock = 0;
    }, 1000);
  }

  /** Put the bubbles into one article for each message, results into their calls, and steps below their row. @param {View} view */
  arrange({ drawn, root, wait, foot, asked }) {
    /** @type {Map<Element, Element>} */
    const last = new Map(); // what was put last into each article and call
    /** @type {Element | undefined} */
    let article;
    let isMine, inside, row, left = 0;
    for (const { root: node, bubble, fold } of drawn) {
      if (!article || isMine !== (bubble.kind === "user")) {
        isMine = bubble.kind === "user";
        article = this.article(root, article, isMine);
        inside = undefined;
      }
      const home = (bubble.inside && inside) || article;
      put(home, node, last.get(home));
      last.set(home, node);
      if (bubble.kind === "steps") [row, left] = [fold, bubble.steps ?? 0];
      else left -= 1;
      if (home !== article) continue;
      inside = bubble.kind === "tool_call" ? fold : undefined;
      setStep(node, bubble, bubble.kind !== "steps" && left >= 0 ? row : undefined);
    }
    const next = () => (article ? article.nextElementSibling : root.firstElementChild);
    while (next()?.localName === "article") next()?.remove();
    const first = root.firstElementChild;
    if (!first?.classList.contains("mine")) asked.remove();
    else if (first.lastElementChild !== asked) first.append(asked);
    if (root.lastElementChild !== foot) root.append(wait, foot);
  }

  /** The article after another one, or the first one. @param {Element} root @param {Element | undefined} before @param {boolean} isMine @returns {Element} */
  article(root, before, isMine) {
    const next = before ? before.nextElementSibling : root.firstElementChild, name = isMine ? "mine" : "answer";
    const article = next?.localName === "article" ? next : root.insertBefore(make("article"), next);
    if (article.classList.contains(name)) return article;
    article.className = name;
    article.setAttribute("aria-label", isMine ? this.labels.you : this.labels.answer);
    return article;
  }

  /** Draw what is below the answer: choices, its caption, versions and buttons. @param {View} view */
  foot({ turn, foot, asked }) {
    const { labels } = this, children = [];
    if (turn.bubbles[0]?.kind === "user") {
      const names = this.actions.filter((name) => ["edit", "erase"].includes(name) || (name === "copy" && this.hasTexts && !turn.is_untyped));
      const mine = turn.question_versions ? [this.versions(turn.question_versions, labels.questionOlder, labels.questionNewer)] : [];
      fill(asked, [...mine, ...names.map((name) => button(name, labels[name]))]);
      asked.inert = turn.is_running; // it keeps its place, so that the end of the answer moves nothing
    }
    if (turn.buttons?.length) {
      const buttons = turn.buttons.map(({ label }, number) => make("button", { type: "button", "data-action": "choose", value: number }, label));
      children.push(make("div", { className: "choices", role: "group", "aria-label": labels.asks }, ...buttons));
    }
    if (turn.caption) children.push(make("div", { className: "caption", innerHTML: turn.caption }));
    if (turn.answer_versions) children.push(this.versions(turn.answer_versions, labels.answerOlder, labels.answerNewer));
    const hasText = turn.text ?? (this.hasTexts && turn.bubbles.some(({ kind }) => kind === "output_text" || kind === "question"));
    /** @type {Record<string, any>} */
    const isPossible = { copy: hasText, speak: hasText, branch: turn.can_branch, picture: hasText, rewrite: turn.can_branch, good: turn.can_branch, bad: turn.can_branch, edit: false, erase: false };
    const offered = turn.is_running ? this.actions.filter((name) => name === "speak" && hasText && !turn.columns?.length) : turn.columns?.length ? this.actions.filter((name) => name === "undo") : this.actions.filter((name) => isPossible[name] ?? true);
    const opens = { "aria-haspopup": "dialog", "aria-expanded": "false" };
    fill(foot, [...children, ...offered.map((name) => button(name, labels[name], name === "retry-with" ? opens : {}))]);
  }

  /** @param {Versions} versions @param {string} older @param {string} newer */
  versions({ ids, number }, older, newer) {
    const to = (/** @type {number} */ at, /** @type {string} */ label) => button("version", label, { value: ids[at - 1] ?? "", disabled: !ids[at - 1] });
    return make("span", { className: "versions" }, to(number - 1, older), make("span", { className: "count" }, `${number}/${ids.length}`), to(number + 1, newer));
  }
}
