// Shows what code makes: a diagram, a picture or a page. It runs in a frame without an origin, so that it reaches nothing of
// this page, and whose policy lets it load nothing. One hidden frame draws all diagrams, with the drawing module, and each is
// shown in a frame that runs no script. This file is loaded with the first preview.
import { make } from "./elements.js";

const DIAGRAM_MS = 1000, PAGE_MS = 2000; // what still grows is drawn again after that long
const HIGHEST = 4000, LONGEST_ERROR = 300;
const EDGE = 8; // around a diagram, as in `FITTED`
const UNSEEN = "position: fixed; inset: 0 auto auto 0; width: 1px; height: 1px; border: 0; opacity: 0; pointer-events: none";
const LONGEST_DRAWING_MS = 20_000, IDLE_MS = 30_000; // of the frame that draws diagrams, which then ends
// A link to a part of the page would load the page of the chat into the frame.
const REPORT = `<script>(() => {
const fail = (error) => parent.postMessage({ error: String(error) }, "*");
addEventListener("error", ({ message }) => fail(message || "error"));
addEventListener("unhandledrejection", ({ reason }) => fail(reason));
addEventListener("click", (event) => {
  const part = event.target.closest?.("a[href^='#']")?.getAttribute("href");
  if (part === undefined) return;
  event.preventDefault();
  document.getElementById(decodeURIComponent(part.slice(1)))?.scrollIntoView();
});
})()</script>`;
// A frame that is hidden does not observe, so it measures at once.
const MEASURE = `const measure = () => parent.postMessage({ height: document.body.firstElementChild.getBoundingClientRect().height }, "*");
measure();
new ResizeObserver(measure).observe(document.body.firstElementChild);`;

const FITTED = "<style>body { margin: 0 } body > div { display: flow-root; padding: 8px; text-align: center } svg { max-width: 100% }</style>";

/** What is in a frame before all else. @param {string} script the folder from which scripts may come, if any @param {boolean} isDark */
const head = (script, isDark) => `<!doctype html><meta charset="utf-8"><meta name="color-scheme" content="${isDark ? "dark" : "light"}">
<meta http-equiv="content-security-policy" content="default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval' blob: ${script}; style-src 'unsafe-inline' ${script}; img-src data: blob:; media-src data: blob:; font-src data:; worker-src blob:; form-action 'none'; base-uri 'none'">
<meta name="viewport" content="width=device-width">${REPORT}`;

/** A text as a value in a script. @param {string} text */
const value = (text) => JSON.stringify(text).replaceAll("<", "\\u003c");

/** The document of the frame that draws diagrams. The module is one of Gradio's files. It asks for a style sheet of Gradio's,
 *  which no diagram needs. Nothing in a drawn diagram can follow a link. @param {string} script */
const DRAWING = (script) => `${head(new URL(".", script).href, false)}<body><script type="module">
addEventListener("vite:preloadError", (event) => event.preventDefault());
const loaded = import(${value(script)});
let last = loaded;
const draw = async ({ id, text, isDark }) => {
  try {
    const { default: mermaid } = await loaded;
    mermaid.initialize({ startOnLoad: false, securityLevel: "strict", htmlLabels: false, suppressErrorRendering: true, theme: isDark ? "dark" : "default",
      secure: ["secure", "securityLevel", "startOnLoad", "maxTextSize", "suppressErrorRendering", "maxEdges", "htmlLabels", "themeCSS", "fontFamily"] });
    const whole = document.createElement("div");
    whole.innerHTML = (await mermaid.render("diagram", text)).svg;
    for (const link of whole.querySelectorAll("a")) link.replaceWith(...link.childNodes);
    const { width, height } = whole.querySelector("svg").viewBox.baseVal;
    parent.postMessage({ id, svg: whole.innerHTML, width, height }, "*");
  } catch ({ message }) {
    parent.postMessage({ id, error: message.split("\\n")[0].replace(/:$/, "") }, "*");
  }
};
addEventListener("message", ({ data }) => (last = last.then(() => draw(data), () => draw(data))));
parent.postMessage({ isReady: true }, "*");
</script>`;

/** @type {Record<string, (text: string, isDark: boolean) => string>} The document of a frame, by language. */
const DOCUMENTS = {
  mermaid: (text, isDark) => `${head("", isDark)}${FITTED}<body><div>${text}</div>`,
  svg: (text, isDark) => `${head("", isDark)}${FITTED}
<script>addEventListener("DOMContentLoaded", () => { ${MEASURE} })</script><body><div>${text}</div>`,
  html: (text) => head("", false) + text,
};

/** @typedef {{language: string, text: () => string, parts: () => Element[], diagrams: string, labels: Record<string, string>}} Code `parts`
 *  are the blocks of the code, which is cut if it is long; `diagrams` is the address of the drawing module */

class Preview {
  /** @param {HTMLElement} pre @param {Code} code */
  constructor(pre, code) {
    this.pre = pre;
    this.code = code;
    this.shown = "";
    this.failure = "";
    this.isClosed = false;
    this.note = make("p", { className: "note", role: "status", hidden: true });
    this.place = make("div", { className: "preview", "data-own": "1" }, this.note);
    pre.append(this.place);
    /** @type {HTMLIFrameElement | undefined} The frame that is shown. */
    this.frame = undefined;
    /** @type {HTMLIFrameElement | undefined} The frame that draws what will be shown. */
    this.next = undefined;
    this.isDark = false; // of what is shown
    shown.add(this);
  }

  get usesDark() {
    return Boolean(this.pre.closest(".dark"));
  }

  /** Draw the code as it is after a pause, and again while it grows. @param {number} pause milliseconds */
  draw(pause) {
    clearTimeout(this.timer);
    if (!this.isClosed) this.timer = setTimeout(() => this.look(), pause);
  }

  look() {
    if (!this.pre.isConnected || this.isClosed) return;
    const text = this.code.text();
    if (this.shown === text) {
      if (this.failure && !this.isGrowing()) this.fail(this.failure, this.code.language !== "mermaid");
    } else if (!this.next || !this.isGrowing()) this.load(text);
    if (this.isGrowing()) this.draw(this.code.language === "html" ? PAGE_MS : DIAGRAM_MS);
  }

  isGrowing() {
    return Boolean(this.pre.closest(".bubble[data-state=running]"));
  }

  /** @param {string} text */
  load(text) {
    const { language, diagrams } = this.code;
    [this.shown, this.failure, this.note.hidden, this.isDark] = [text, "", true, this.usesDark];
    this.drop();
    if (language !== "mermaid") return this.put(text);
    diagram(new URL(diagrams, document.baseURI).href, { text, isDark: this.isDark }, (said) => {
      if (this.shown !== text || this.isClosed) return; // it has grown
      if (typeof said?.svg !== "string") return this.fail(String(said?.error).slice(0, LONGEST_ERROR));
      const [width, height] = [said.width, said.height].map((one) => Math.max(1, Math.min(Number(one) || 0, HIGHEST)) + 2 * EDGE);
      this.put(said.svg, `aspect-ratio: ${width} / ${height}; height: auto; max-width: ${width}px; margin: auto; color-scheme: ${this.isDark ? "dark" : "light"}`);
    });
  }

  /** Load the new frame. A diagram's runs no script. @param {string} text @param {string} style */
  put(text, style = "") {
    const { language, labels } = this.code;
    let loads = 0;
    const frame = make("iframe", { className: `${language} next`, title: labels.preview, referrerPolicy: "no-referrer", style,
      sandbox: language === "mermaid" ? "" : "allow-scripts allow-forms", srcdoc: DOCUMENTS[language](text, this.isDark) });
    frame.addEventListener("load", () => {
      if (++loads === 1) return void (language === "mermaid" && this.swap());
      this.close();
      this.say(labels.previewLeft);
      this.note.hidden = false;
    });
    this.next = frame;
    this.place.prepend(frame);
    if (language === "html") this.swap();
  }

  /** Show the new frame in place of the old one. */
  swap() {
    this.frame?.remove();
    [this.frame, this.next] = [this.next, undefined];
    this.frame?.classList.remove("next");
    this.show(true);
  }

  /** Read what a frame says: it is a stranger. @param {any} said */
  answer(said) {
    if (typeof said?.error === "string") return this.fail(said.error.slice(0, LONGEST_ERROR), this.code.language !== "mermaid");
    const height = Math.ceil(Number(said?.height)), frame = this.next ?? this.frame;
    if (!(height >= 0) || this.code.language !== "svg" || !frame) return;
    if (height) frame.style.height = `${Math.min(height, HIGHEST)}px`; // a frame that is not shown yet can have none
    if (this.next) this.swap();
  }

  /** A diagram or picture that cannot be shown is code again, but not while it grows. @param {string} why @param {boolean} stays */
  fail(why, stays = false) {
    if (!stays && this.isGrowing()) this.drop();
    else if (!stays) this.close();
    this.say(why);
  }

  /** Say what went wrong, once the code is complete. @param {string} why */
  say(why) {
    this.failure = why;
    this.note.textContent = this.code.labels.previewFailed.replace("{why}", () => why);
    this.note.hidden = this.isGrowing();
  }

  /** End the frame that is not shown yet. */
  drop() {
    this.next?.remove();
    this.next = undefined;
  }

  /** End what runs in the frames, and show the code. */
  close() {
    this.drop();
    this.frame?.remove();
    this.frame = undefined;
    this.show(false);
  }

  /** @param {boolean} isShown */
  show(isShown) {
    for (const part of this.code.parts()) part.toggleAttribute("data-previewed", isShown);
    this.pre.querySelector(":scope > .tools > [data-action=preview]")?.setAttribute("aria-pressed", String(isShown));
  }
}

/** @type {WeakMap<HTMLElement, Preview>} */
const previews = new WeakMap();
/** @type {Set<Preview>} Those that are in the page. */
const shown = new Set();
addEventListener("message", ({ source, data }) => {
  for (const one of shown) {
    if (!one.pre.isConnected) shown.delete(one);
    else if (source && source === (one.next ?? one.frame)?.contentWindow) one.answer(data);
  }
});
// Diagrams and pictures are drawn again in other colours.
const recolour = () => {
  for (const one of shown) {
    if (!one.frame || one.code.language === "html" || one.isDark === one.usesDark) continue;
    one.shown = "";
    one.draw(0);
  }
};
new MutationObserver(recolour).observe(document.body, { attributeFilter: ["class"] });

/** @typedef {{id: number, text: string, isDark: boolean, then: (said: any) => void}} Drawing */
/** @type {{frame: HTMLIFrameElement, isReady: boolean, asked: Drawing[], timer: any} | undefined} The frame that draws diagrams. */
let drawing;
let drawings = 0;
const endDrawing = () => {
  const asked = drawing?.asked ?? [];
  drawing?.frame.remove();
  drawing = undefined;
  return asked;
};
/** Give the frame its next diagram, or end it after a while. One that takes too long ends with the frame. */
const drawNext = () => {
  if (!drawing?.isReady) return;
  const { frame, asked: [first] } = drawing;
  clearTimeout(drawing.timer);
  if (!first) return void (drawing.timer = setTimeout(endDrawing, IDLE_MS));
  const { id, text, isDark } = first, script = frame.dataset.script ?? "";
  frame.contentWindow?.postMessage({ id, text, isDark }, "*");
  drawing.timer = setTimeout(() => {
    const [late, ...rest] = endDrawing();
    late.then({ error: "it takes too long" });
    for (const one of rest) diagram(script, one, one.then);
  }, LONGEST_DRAWING_MS);
};
/** Draw a diagram when it is its turn. What the frame says of it is a stranger's. @param {string} script @param {{text: string, isDark: boolean}} what @param {(said: any) => void} then */
function diagram(script, { text, isDark }, then) {
  if (!drawing) {
    const frame = make("iframe", { "aria-hidden": "true", tabIndex: -1, style: UNSEEN, "data-script": script, referrerPolicy: "no-referrer", sandbox: "allow-scripts", srcdoc: DRAWING(script) });
    drawing = { frame, isReady: false, asked: [], timer: 0 };
    document.body.append(frame);
  }
  drawing.asked.push({ id: ++drawings, text, isDark, then });
  if (drawing.asked.length === 1) drawNext();
}
addEventListener("message", ({ source, data }) => {
  if (!drawing || source !== drawing.frame.contentWindow) return;
  const [first] = drawing.asked;
  if (data?.isReady) drawing.isReady = true;
  else if (!first || data?.id !== first.id) return;
  else drawing.asked.shift()?.then(data);
  drawNext();
});

/** @param {HTMLElement} pre @param {Code} code */
function previewOf(pre, code) {
  const preview = previews.get(pre) ?? new Preview(pre, code);
  previews.set(pre, preview);
  preview.code = code;
  return preview;
}

/** Draw the code of a block, unless the reader has closed its preview. @param {HTMLElement} pre @param {Code} code */
export function draw(pre, code) {
  previewOf(pre, code).draw(DIAGRAM_MS);
}

/** Show what the code of a block makes, or the code again. @param {HTMLElement} pre @param {Code} code */
export function toggle(pre, code) {
  const preview = previewOf(pre, code);
  preview.isClosed = Boolean(preview.frame);
  [preview.shown, preview.note.hidden] = ["", true];
  preview.isClosed ? preview.close() : preview.draw(0);
}
