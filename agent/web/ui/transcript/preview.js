// Shows what code makes in frames without an origin, which reach nothing of this page, and whose policy lets them load
// nothing. One hidden frame for each drawing module draws diagrams, and what it has drawn is shown in a frame that runs no
// script. This file is loaded with the first diagram or artifact.
import { codeOf, isGrowing, kindOf, wholeBlock } from "./blocks.js";
import { make } from "./elements.js";

const PAUSE_MS = 1000, PAGE_MS = 2000; // what still grows is drawn again after that long
const HIGHEST = 4000, LONGEST_ERROR = 300, MOST_ERRORS = 3, MOST_REPORTS = 300; // a page can report without an end
const EDGE = 8; // around a diagram, as in `FITTED`
const LOAD_MS = 3000; // a page that never ends loading is shown after that long
const UNSEEN = "position: fixed; inset: 0 auto auto 0; width: 1px; height: 1px; border: 0; opacity: 0; pointer-events: none";
const LONGEST_DRAWING_MS = 20_000, IDLE_MS = 30_000; // of the frame that draws diagrams, which then ends
// What a page reports: its errors, what its policy has stopped, and Escape. A link or a form would load another page, and a
// link to a part of the page the page of the chat.
const REPORT = `<script>(() => {
const say = (said) => parent.postMessage(said, "*");
const fail = (error, line) => say({ error: String(error), line });
addEventListener("error", ({ message, lineno }) => fail(message || "error", lineno));
addEventListener("unhandledrejection", ({ reason }) => fail(reason));
addEventListener("securitypolicyviolation", ({ blockedURI, effectiveDirective }) => say({ blocked: blockedURI, part: effectiveDirective }));
addEventListener("keydown", (event) => event.key === "Escape" && !event.defaultPrevented && say({ isLeft: true }));
addEventListener("submit", (event) => event.preventDefault());
addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]")?.getAttribute("href");
  if (event.defaultPrevented || link === undefined || /^(javascript|data|blob):/i.test(link)) return;
  event.preventDefault();
  if (!link.startsWith("#")) return say({ blocked: link });
  document.getElementById(decodeURIComponent(link.slice(1)))?.scrollIntoView();
});
})()</script>`;
const FITTED = `<style>body { margin: 0; min-height: 100vh; display: grid; align-items: center } body > div { display: flow-root; min-width: 0; padding: ${EDGE}px; text-align: center } svg { max-width: 100% }</style>`;

/** What is in a frame before all else. @param {string} script the folder from which scripts may come, if any @param {boolean} isDark */
const head = (script, isDark) => `<!doctype html><meta charset="utf-8"><meta name="color-scheme" content="${isDark ? "dark" : "light"}">
<meta http-equiv="content-security-policy" content="default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval' blob: ${script}; style-src 'unsafe-inline' ${script}; img-src data: blob:; media-src data: blob:; font-src data:; worker-src blob:; form-action 'none'; base-uri 'none'">
<meta name="viewport" content="width=device-width">${REPORT}`;
const LINES = head("", false).split("\n").length - 1; // before those of a page

/** A text as a value in a script. @param {string} text */
const value = (text) => JSON.stringify(text).replaceAll("<", "\\u003c");

/** @type {Record<string, string>} What draws a text, given the module and its default export, by kind. It returns SVG. */
const DRAW = {
  mermaid: `async (mermaid, text, isDark) => {
    mermaid.initialize({ startOnLoad: false, securityLevel: "strict", htmlLabels: false, suppressErrorRendering: true, theme: isDark ? "dark" : "default",
      secure: ["secure", "securityLevel", "startOnLoad", "maxTextSize", "suppressErrorRendering", "maxEdges", "htmlLabels", "themeCSS", "fontFamily"] });
    return (await mermaid.render("diagram", text)).svg;
  }`,
  "vega-lite": `async (embed, text) => {
    const given = JSON.parse(text), spec = given.mark || given.layer ? { width: 480, height: 300, ...given } : given;
    if (JSON.stringify(spec).includes('"url":')) throw { label: "drawingLoads" };
    for (const side of ["width", "height"]) if (spec[side] === "container") spec[side] = 480;
    const { view, finalize } = await embed(document.createElement("div"), spec, { actions: false, renderer: "svg", defaultStyle: false, tooltip: false });
    const svg = await view.toSVG();
    finalize();
    return svg;
  }`,
};
const FAULTS = ["drawingLate", "drawingLoads"]; // of which the page has a sentence
/** The document of the frame that draws diagrams. The module is one of Gradio's files. It asks for a style sheet of Gradio's,
 *  which no diagram needs. Nothing in a drawn diagram can follow a link. @param {string} kind @param {string} script */
const DRAWING = (kind, script) => `${head(new URL(".", script).href, false)}<body><script type="module">
addEventListener("vite:preloadError", (event) => event.preventDefault());
const loaded = import(${value(script)}), drawn = ${DRAW[kind]};
let last = loaded;
const draw = async ({ id, text, isDark }) => {
  try {
    const whole = document.createElement("div");
    whole.innerHTML = await drawn((await loaded).default, text, isDark);
    for (const link of whole.querySelectorAll("a")) link.replaceWith(...link.childNodes);
    const { width, height } = whole.querySelector("svg").viewBox.baseVal;
    parent.postMessage({ id, svg: whole.innerHTML, width, height }, "*");
  } catch ({ label, message = "" }) {
    parent.postMessage({ id, label, error: message.split("\\n")[0].replace(/:$/, "") }, "*");
  }
};
addEventListener("message", ({ data }) => (last = last.then(() => draw(data), () => draw(data))));
parent.postMessage({ isReady: true }, "*");
</script>`;

/** The document of a frame. @param {string} kind @param {string} text @param {boolean} isDark */
const documentOf = (kind, text, isDark) => kind === "html" ? head("", false) + text : `${head("", isDark)}${FITTED}<body><div>${text}</div>`;

/** @typedef {{kind: string, text: string, isGrowing: boolean}} Source what is shown */

/** A frame that shows what code makes, and follows the code while it grows. */
export class Preview {
  /**
   * @param {HTMLElement} place where the frame is put
   * @param {import("./blocks.js").Frames} frames
   * @param {{source: () => Source | undefined, shows?: (isShown: boolean) => void, says: (errors: string[]) => void, leaves?: () => void}} on `source`
   *   returns the code, `says` gets what was reported of it
   */
  constructor(place, { labels, options }, { source, shows = () => {}, says, leaves = () => {} }) {
    this.place = place;
    this.labels = labels;
    this.source = source;
    this.shows = shows;
    this.says = says;
    this.leaves = leaves;
    this.modules = options.diagrams ?? {};
    /** @type {string | undefined} */
    this.shown = undefined; // the text of what is shown or being drawn
    /** @type {string[]} */
    this.errors = [];
    this.reports = 0;
    /** @type {HTMLIFrameElement | undefined} The frame that is shown. */
    this.frame = undefined;
    /** @type {HTMLIFrameElement | undefined} The frame that will be shown. */
    this.next = undefined;
    this.kind = "";
    this.isDark = false; // of what is shown
  }

  get usesDark() {
    return Boolean(this.place.closest(".dark"));
  }

  /** Draw the code as it is after a pause, and again while it grows. @param {number} pause milliseconds */
  draw(pause = PAUSE_MS) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.look(), pause);
  }

  look() {
    const source = this.place.isConnected ? this.source() : undefined;
    if (!source) return;
    if (this.shown !== source.text || this.kind !== source.kind) {
      if (!this.next || !source.isGrowing) this.load(source);
    } else if (!source.isGrowing) this.says(this.errors);
    if (source.isGrowing) this.draw(source.kind === "html" ? PAGE_MS : PAUSE_MS);
  }

  /** @param {Source} source */
  load({ kind, text }) {
    this.drop();
    [this.shown, this.kind, this.errors, this.reports, this.isDark] = [text, kind, [], 0, this.usesDark];
    this.says([]);
    if (!DRAW[kind]) return this.put(text);
    draw(kind, new URL(this.modules[kind], document.baseURI).href, { text, isDark: this.isDark }, (said) => {
      if (this.shown !== text || this.kind !== kind) return; // it has grown, or was closed
      if (typeof said?.svg !== "string") return this.fail(FAULTS.includes(said?.label) ? this.labels[said.label] : String(said?.error));
      const [width, height] = [said.width, said.height].map((one) => Math.max(1, Math.min(Number(one) || 0, HIGHEST)) + 2 * EDGE);
      this.put(said.svg, `--ratio: ${width} / ${height}; --wide: ${width}px; color-scheme: ${this.isDark && kind === "mermaid" ? "dark" : "light"}`);
    });
  }

  /** Load the new frame. A diagram's runs no script. @param {string} text @param {string} style */
  put(text, style = "") {
    const { kind, labels } = this;
    let loads = 0;
    const frame = make("iframe", { className: `${kind} next`, title: labels.preview, referrerPolicy: "no-referrer", style,
      sandbox: DRAW[kind] ? "" : "allow-scripts allow-forms", srcdoc: documentOf(kind, text, this.isDark && kind === "mermaid") });
    const swap = () => this.next === frame && this.swap();
    frame.addEventListener("load", () => {
      if (++loads === 1) return swap();
      this.close();
      this.add(labels.previewLeft);
    });
    setTimeout(swap, LOAD_MS);
    this.next = frame;
    this.place.prepend(frame);
    shown.add(this);
  }

  /** Show the new frame in place of the old one. */
  swap() {
    this.frame?.remove();
    [this.frame, this.next] = [this.next, undefined];
    this.frame?.classList.remove("next");
    this.shows(true);
  }

  /** Read what a frame says: it is a stranger. @param {any} said */
  answer(said) {
    if (said?.isLeft) return this.leaves();
    if ((this.reports += 1) > MOST_REPORTS) return;
    if (typeof said?.blocked === "string") return this.add(this.labels.previewBlocked.replace("{name}", () => said.blocked || String(said.part)));
    if (typeof said?.error !== "string") return;
    const line = Number(said.line) - LINES;
    this.add(line > 0 && this.kind === "html" ? `${said.error} (${this.labels.line.replace("{number}", String(line))})` : said.error);
  }

  /** A diagram that cannot be drawn is code again, but not while it grows. @param {string} why */
  fail(why) {
    if (!this.source()?.isGrowing) this.close();
    this.add(why);
  }

  /** Say what went wrong, once the code is complete. @param {string} why */
  add(why) {
    const text = why.slice(0, LONGEST_ERROR);
    this.errors = [...this.errors.filter((one) => one !== text).slice(1 - MOST_ERRORS), text];
    if (!this.source()?.isGrowing) this.says(this.errors);
  }

  /** End the frame that is not shown yet. */
  drop() {
    this.next?.remove();
    this.next = undefined;
  }

  /** End what runs in the frames. */
  close() {
    this.drop();
    this.frame?.remove();
    this.frame = undefined;
    this.shows(false);
  }

  /** End it all: nothing is shown any more. */
  end() {
    clearTimeout(this.timer);
    this.shown = undefined;
    this.close();
  }
}

/** @type {Set<Preview>} Those that are in the page. */
const shown = new Set();
addEventListener("message", ({ source, data }) => {
  for (const one of shown) {
    if (!one.place.isConnected) shown.delete(one);
    else if (source && source === (one.next ?? one.frame)?.contentWindow) one.answer(data);
  }
});
// Diagrams are drawn again in other colours.
const recolour = () => {
  for (const one of shown) {
    if (!one.frame || one.kind !== "mermaid" || one.isDark === one.usesDark) continue;
    one.shown = undefined;
    one.draw(0);
  }
};
new MutationObserver(recolour).observe(document.body, { attributeFilter: ["class"] });

/** @typedef {{id: number, text: string, isDark: boolean, then: (said: any) => void}} Wish */
/** @typedef {{frame: HTMLIFrameElement, isReady: boolean, asked: Wish[], timer: any}} Drawer */
/** @type {Map<string, Drawer>} The frames that draw, by kind. */
const drawers = new Map();
let wishes = 0;
/** @param {string} kind */
const end = (kind) => {
  const asked = drawers.get(kind)?.asked ?? [];
  drawers.get(kind)?.frame.remove();
  drawers.delete(kind);
  return asked;
};
/** Give a frame its next diagram, or end it after a while. One that takes too long ends with the frame. @param {string} kind @param {string} script */
const drawNext = (kind, script) => {
  const drawer = drawers.get(kind);
  if (!drawer?.isReady) return;
  const { frame, asked: [first] } = drawer;
  clearTimeout(drawer.timer);
  if (!first) return void (drawer.timer = setTimeout(() => end(kind), IDLE_MS));
  const { id, text, isDark } = first;
  frame.contentWindow?.postMessage({ id, text, isDark }, "*");
  drawer.timer = setTimeout(() => {
    const [late, ...rest] = end(kind);
    late.then({ label: "drawingLate" });
    for (const one of rest) draw(kind, script, one, one.then);
  }, LONGEST_DRAWING_MS);
};
/** Draw a diagram when it is its turn. What the frame says of it is a stranger's. @param {string} kind @param {string} script @param {{text: string, isDark: boolean}} what @param {(said: any) => void} then */
function draw(kind, script, { text, isDark }, then) {
  /** @type {Drawer} */
  const drawer = drawers.get(kind) ?? { frame: make("iframe", { "aria-hidden": "true", tabIndex: -1, style: UNSEEN, "data-script": script, referrerPolicy: "no-referrer", sandbox: "allow-scripts", srcdoc: DRAWING(kind, script) }), isReady: false, asked: [], timer: 0 };
  if (!drawer.frame.isConnected) document.body.append(drawer.frame);
  drawers.set(kind, drawer);
  drawer.asked.push({ id: ++wishes, text, isDark, then });
  if (drawer.asked.length === 1) drawNext(kind, script);
}
addEventListener("message", ({ source, data }) => {
  for (const [kind, drawer] of drawers) {
    if (source !== drawer.frame.contentWindow) continue;
    const [first] = drawer.asked;
    if (data?.isReady) drawer.isReady = true;
    else if (!first || data?.id !== first.id) continue;
    else drawer.asked.shift()?.then(data);
    drawNext(kind, drawer.frame.dataset.script ?? "");
  }
});

/** @type {WeakMap<HTMLElement, Preview>} */
const inside = new WeakMap();
/** Draw a diagram in place of its code. One that has a fault is code, with the fault. @param {HTMLElement} pre @param {import("./blocks.js").Frames} frames */
export function drawInside(pre, frames) {
  const known = inside.get(pre);
  if (known) return known.draw();
  const note = make("p", { className: "note", role: "status", hidden: true }), place = make("div", { className: "preview", "data-own": "1" }, note);
  pre.append(place);
  const preview = new Preview(place, frames, {
    source: () => ({ kind: kindOf(pre), text: codeOf(pre), isGrowing: isGrowing(pre) }),
    shows: (isShown) => wholeBlock(pre).forEach((part) => part.toggleAttribute("data-previewed", isShown)),
    says: (errors) => {
      note.hidden = !errors.length;
      note.textContent = frames.labels.previewFailed.replace("{why}", () => errors.at(-1) ?? "");
    },
  });
  inside.set(pre, preview);
  preview.draw();
}
