// Shows what code makes: a diagram, a picture or a page. It runs in a frame without an origin, so that it reaches nothing of
// this page, and whose policy lets it load nothing but the drawing module. This file is loaded with the first preview.
import { make } from "./elements.js";

const DIAGRAM_MS = 1000, PAGE_MS = 2000; // what still grows is drawn again after that long
const HIGHEST = 4000, LONGEST_ERROR = 300;
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

/** @type {Record<string, (text: string, script: string, isDark: boolean) => string>} The document of a frame, by language. */
const DOCUMENTS = {
  // The module is one of Gradio's files. It asks for a style sheet of Gradio's, which the diagram does not need.
  mermaid: (text, script, isDark) => `${head(new URL(".", script).href, isDark)}${FITTED}
<body><div></div><script type="module">
const whole = document.body.firstElementChild;
addEventListener("vite:preloadError", (event) => event.preventDefault());
const { default: mermaid } = await import(${value(script)});
mermaid.initialize({ startOnLoad: false, securityLevel: "strict", htmlLabels: false, suppressErrorRendering: true, theme: "${isDark ? "dark" : "default"}",
  secure: ["secure", "securityLevel", "startOnLoad", "maxTextSize", "suppressErrorRendering", "maxEdges", "htmlLabels", "themeCSS", "fontFamily"] });
try {
  whole.innerHTML = (await mermaid.render("diagram", ${value(text)})).svg;
  for (const link of whole.querySelectorAll("a")) link.replaceWith(...link.childNodes); // nothing in the frame can follow it
  ${MEASURE}
} catch ({ message }) {
  parent.postMessage({ error: message.split("\\n")[0].replace(/:$/, "") }, "*");
}
</script>`,
  svg: (text, script, isDark) => `${head("", isDark)}${FITTED}
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
    /** @param {MessageEvent} event */
    this.hear = ({ source, data }) => {
      if (!pre.isConnected) removeEventListener("message", this.hear);
      else if (source && source === (this.next ?? this.frame)?.contentWindow) this.answer(data);
    };
    addEventListener("message", this.hear);
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
    const { language, diagrams, labels } = this.code;
    [this.shown, this.failure, this.note.hidden] = [text, "", true];
    this.drop();
    const isDark = Boolean(this.pre.closest(".dark")), script = diagrams && new URL(diagrams, document.baseURI).href;
    let loads = 0;
    const frame = make("iframe", { className: `${language} next`, title: labels.preview, referrerPolicy: "no-referrer",
      sandbox: "allow-scripts allow-forms", srcdoc: DOCUMENTS[language](text, script, isDark) });
    frame.addEventListener("load", () => {
      if (++loads === 1) return;
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
    if (!(height >= 0) || this.code.language === "html" || !frame) return;
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
