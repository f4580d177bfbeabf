// Draws turns as elements. Only the blocks that edits name are touched, and a block that grows keeps its nodes, so that
// the reader's selection, folds and place stay. The HTML of blocks and captions is made by the server from an allow list.
import { Frames } from "./blocks.js";
import { applied, changes, touched } from "./edits.js";
import { button, make } from "./elements.js";

export { button, make };

/** @typedef {import("./edits.js").Turn} Turn @typedef {import("./edits.js").Bubble} Bubble @typedef {import("./edits.js").Edit} Edit */
/** @typedef {{root: HTMLElement, parts: HTMLElement, bubble: Bubble, since: number}} Drawn */
/** @typedef {{turn: Turn, root: HTMLElement, drawn: Drawn[], foot: HTMLElement, asked: HTMLElement, wait: HTMLElement}} View */

const STEPS = ["reasoning", "tool_call", "tool_call_result"];

// What the module adds to the elements of blocks.
const OWN = ["open", "role", "tabindex", "aria-label", "style", "target"];

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

export class Drawing {
  /**
   * @param {HTMLElement} root where the turns are drawn
   * @param {Record<string, string>} labels
   * @param {{language?: string, actions?: string[], hasTexts?: boolean}} options `hasTexts`: a text can be asked for
   */
  constructor(root, labels, { language, actions = [], hasTexts = false } = {}) {
    this.root = root;
    this.labels = labels;
    this.frames = new Frames(labels);
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
        make("i", { role: "img", "aria-label": this.labels.wait }), make("span", { role: "status" }), make("span", { className: "time" }));
      const root = make("div", { className: "turn", "data-turn": id }, wait, foot);
      view = { turn: { id, bubbles: [], is_running: false }, drawn: [], foot, asked, wait, root };
      this.views.set(id, view);
    }
    return view;
  }

  /** @param {View} view @param {Edit[]} edits */
  draw(view, edits) {
    const blocks = touched(view.turn, edits);
    view.turn = applied(view.turn, edits);
    for (const [number, first] of blocks) if (number < view.turn.bubbles.length) this.bubble(view, number, first);
    if (edits.every(([kind]) => kind === "blocks")) return;
    for (const { root } of view.drawn.splice(view.turn.bubbles.length)) root.remove();
    this.arrange(view);
    this.foot(view);
    this.tick();
  }

  /** @param {View} view @param {number} number @param {number} first */
  bubble(view, number, first) {
    const bubble = view.turn.bubbles[number], old = view.drawn[number];
    const isSame = old && old.bubble.kind === bubble.kind;
    const drawn = isSame ? old : this.created(bubble);
    if (!isSame) {
      old?.root.replaceWith(drawn.root);
      view.drawn[number] = drawn;
    }
    this.fields(drawn, bubble);
    const { parts } = drawn, { children } = parts;
    for (let at = first; at < bubble.blocks.length; at += 1) {
      const template = make("template", { innerHTML: bubble.blocks[at] });
      if (children[at]) morph(children[at], template.content);
      else parts.append(make("div", { className: "part", dir: "auto" }, template.content));
      this.frames.complete(/** @type {HTMLElement} */ (children[at]), STEPS.includes(bubble.kind));
    }
    while (children.length > bubble.blocks.length) children[children.length - 1].remove();
  }

  /** @param {Bubble} bubble @returns {Drawn} */
  created(bubble) {
    const parts = make("div", { className: "parts" });
    const title = [make("span", { className: "title" }), make("span", { className: "time" })];
    const root = make("div", { className: "bubble", "data-kind": bubble.kind });
    if (STEPS.includes(bubble.kind)) root.append(make("details", {}, make("summary", {}, ...title), parts));
    else if (bubble.kind === "steps") root.append(make("button", { type: "button", "data-action": "steps", "aria-expanded": "false" }, ...title), parts);
    else root.append(parts);
    return { root, parts, bubble: { ...bubble, state: "" }, since: 0 };
  }

  /** Set what is around the blocks. @param {Drawn} drawn @param {Bubble} bubble */
  fields(drawn, bubble) {
    const { root } = drawn, isNew = drawn.bubble.state === "";
    const details = root.querySelector(":scope > details");
    if (details && drawn.bubble.state !== bubble.state && !root.dataset.touched) {
      /** @type {HTMLDetailsElement} */ (details).open = Boolean(bubble.inside) || bubble.state === "waiting" || (bubble.kind === "reasoning" && bubble.state === "running");
    }
    if (isNew || bubble.seconds !== drawn.bubble.seconds) drawn.since = performance.now() - (bubble.seconds ?? 0) * 1000;
    root.dataset.state = bubble.state;
    const title = root.querySelector(".title");
    if (title) title.textContent = bubble.title || (bubble.kind === "reasoning" ? this.labels.reasoning : "");
    drawn.bubble = bubble;
    this.time(drawn);
  }

  /** @param {Drawn} drawn */
  time({ root, bubble, since }) {
    const place = root.querySelector(".time");
    if (!place || bubble.seconds === undefined) return;
    const isRunning = bubble.state === "running";
    const seconds = isRunning ? Math.floor((performance.now() - since) / 1000) : bubble.seconds;
    const text = seconds < 0.05 ? "" : this.labels.seconds.replace("{seconds}", isRunning ? String(seconds) : this.number.format(seconds));
    if (place.textContent !== text) place.textContent = text;
  }

  /** Count the seconds of steps that run. */
  tick() {
    const running = () => [...this.views.values()].filter(({ turn }) => turn.is_running).flatMap(({ drawn }) => drawn)
      .filter(({ bubble }) => bubble.state === "running" && bubble.seconds !== undefined);
    if (this.clock || !running().length) return;
    this.clock = setInterval(() => {
      const all = running();
      all.forEach((drawn) => this.time(drawn));
      if (!all.length || !this.root.isConnected) this.clock = void clearInterval(this.clock) ?? 0;
    }, 1000);
  }

  /** Put the bubbles into one article for each message, results into their calls, and steps below their row. @param {View} view */
  arrange({ turn, drawn, root, wait, foot, asked }) {
    const used = new Set();
    let article, isMine, inside, row, left = 0;
    drawn.forEach(({ root: node, bubble }, number) => {
      if (!article || isMine !== (bubble.kind === "user")) {
        isMine = bubble.kind === "user";
        const next = article ? article.nextElementSibling : root.firstElementChild;
        article = next?.localName === "article" ? next : make("article");
        if (article !== next) root.insertBefore(article, next);
        article.className = isMine ? "mine" : "answer";
        article.setAttribute("aria-label", isMine ? this.labels.you : this.labels.answer);
        used.add(article);
        inside = undefined;
      }
      const home = bubble.inside && inside ? inside : article;
      const before = home === article ? used.size && this.after(drawn, number, article) : null;
      if (node.parentElement !== home || (home === article && node.previousElementSibling !== before)) {
        home === article ? (before ? before.after(node) : article.prepend(node)) : home.append(node);
      }
      if (!bubble.inside) inside = bubble.kind === "tool_call" ? node.querySelector("details") : undefined;
      if (bubble.kind === "steps") [row, left] = [node, bubble.steps ?? 0];
      else if (row) left -= 1;
      const isStep = Boolean(row) && bubble.kind !== "steps" && left >= 0;
      node.classList.toggle("step", isStep);
      const isFolded = isStep && !["failed", "refused", "waiting"].includes(bubble.state) && row.firstElementChild.getAttribute("aria-expanded") !== "true";
      if (isFolded && node.contains(document.activeElement)) row.firstElementChild.focus({ preventScroll: true });
      node.hidden = isFolded;
    });
    for (const child of [...root.children]) if (child.localName === "article" && !used.has(child)) child.remove();
    const first = root.firstElementChild;
    if (first?.className !== "mine") asked.remove();
    else if (first.lastElementChild !== asked) first.append(asked);
    if (root.lastElementChild !== foot) root.append(wait, foot);
    wait.hidden = !turn.waiting && (!turn.is_running || turn.bubbles.some(({ state }) => state === "running" || state === "waiting"));
  }

  /** The bubble before this one in the same article. @param {Drawn[]} drawn @param {number} number @param {Element} article */
  after(drawn, number, article) {
    for (let at = number - 1; at >= 0; at -= 1) if (drawn[at].root.parentElement === article) return drawn[at].root;
    return null;
  }

  /** Draw what is below the answer: choices, its caption, versions and buttons. @param {View} view */
  foot({ turn, foot, asked }) {
    const { labels } = this, children = [];
    if (turn.bubbles[0]?.kind === "user") {
      const names = this.actions.filter((name) => name === "edit" || (name === "copy" && this.hasTexts));
      const mine = turn.question_versions ? [this.versions(turn.question_versions, labels.questionOlder, labels.questionNewer)] : [];
      const label = { copy: labels.copy, edit: labels.edit };
      asked.replaceChildren(...mine, ...names.map((name) => button(name === "copy" ? "copy-message" : name, label[name])));
    }
    if (turn.buttons?.length) {
      const buttons = turn.buttons.map(({ label }, number) => make("button", { type: "button", "data-action": "choose", value: number }, label));
      children.push(make("div", { className: "choices", role: "group", "aria-label": labels.asks }, ...buttons));
    }
    if (turn.caption) children.push(make("div", { className: "caption", innerHTML: turn.caption }));
    if (turn.answer_versions) children.push(this.versions(turn.answer_versions, labels.answerOlder, labels.answerNewer));
    const isPossible = { copy: turn.text || (this.hasTexts && turn.text === undefined), branch: turn.can_branch, edit: false };
    const offered = turn.is_running ? [] : this.actions.filter((name) => isPossible[name] ?? true);
    foot.replaceChildren(...children, ...offered.map((name) => button(name, labels[name])));
  }

  /** @param {import("./edits.js").Versions} versions @param {string} older @param {string} newer */
  versions({ ids, number }, older, newer) {
    const to = (/** @type {number} */ at, /** @type {string} */ label) => button("version", label, { value: ids[at - 1] ?? "", disabled: !ids[at - 1] });
    return make("span", { className: "versions" }, to(number - 1, older), make("span", { className: "count" }, `${number}/${ids.length}`), to(number + 1, newer));
  }
}
