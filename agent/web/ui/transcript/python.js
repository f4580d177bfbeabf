// Runs the Python code of a block in the reader's browser, and shows its output below the code. Pyodide runs in a worker of
// a frame that has no origin, and whose policy lets it load Pyodide's own files alone. The end of the frame ends an endless
// loop. Each run begins anew. Loaded when it is first used.
import { codeOf } from "./blocks.js";
import { make, styled } from "./elements.js";

/** @typedef {{fire: (name: string, detail: object) => void, fail: (text: string) => void}} Actions */

const MOST_SIGNS = 50_000, MOST_MESSAGES = 20_000, MOST_PICTURES = 10, MOST_PICTURE = 4_000_000, MOST_ROWS = 200, MOST_COLUMNS = 30;
const MOST_CELL = 300, MOST_ERROR = 3000, DRAW_MS = 100;
const UNSEEN = "position: fixed; inset: 0 auto auto 0; width: 1px; height: 1px; border: 0; opacity: 0; pointer-events: none";

// What the program makes: the value of its last line, and the plots of matplotlib.
const SHOW = `
def _shown(value):
    import json, sys
    def cells(rows):
        return [[str(one)[:${MOST_CELL}] for one in list(row)[:${MOST_COLUMNS}]] for row in list(rows)[:${MOST_ROWS}]]
    pandas = sys.modules.get("pandas")
    if pandas and isinstance(value, pandas.Series):
        value = value.to_frame()
    if pandas and isinstance(value, pandas.DataFrame):
        few = value.head(${MOST_ROWS}).reset_index()
        return json.dumps({"head": cells([few.columns])[0], "rows": cells(few.itertuples(index=False)), "count": len(value)})
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        head = list(dict.fromkeys(str(key) for one in value[:${MOST_ROWS}] for key in one))
        rows = [[one.get(key, "") for key in head] for one in value[:${MOST_ROWS}]]
        return json.dumps({"head": cells([head])[0], "rows": cells(rows), "count": len(value)})
    return json.dumps({"text": "" if value is None else repr(value)[:${MOST_SIGNS}]})
def _plots():
    import base64, io, sys
    pyplot = sys.modules.get("matplotlib.pyplot")
    found = []
    for number in (pyplot.get_fignums() if pyplot else [])[:${MOST_PICTURES}]:
        out = io.BytesIO()
        pyplot.figure(number).savefig(out, format="png", bbox_inches="tight")
        found.append(base64.b64encode(out.getvalue()).decode())
    return "\\n".join(found)
`;
/** The program of the worker. @param {string} base */
const WORKER = (base) => `
const BASE = ${JSON.stringify(base)};
let left = ${MOST_SIGNS};
const say = (said) => postMessage(said);
const out = (text) => {
  if (left > 0) say({ out: text.slice(0, left) });
  if (left >= 0 && text.length > left) say({ isCut: true });
  left -= text.length;
};
onmessage = async ({ data }) => {
  let python;
  try {
    const { loadPyodide } = await import(BASE + "pyodide.mjs");
    python = await loadPyodide({ indexURL: BASE, env: { HOME: "/home/pyodide", MPLBACKEND: "AGG" } });
  } catch (error) {
    return say({ failed: String(error?.message ?? error) });
  }
  const decoder = () => {
    const text = new TextDecoder();
    return { write: (bytes) => (out(text.decode(bytes, { stream: true })), bytes.length) };
  };
  python.setStdout(decoder());
  python.setStderr(decoder());
  try {
    await python.loadPackagesFromImports(data, { messageCallback: () => {}, errorCallback: () => {} }).catch(() => {});
    say({ begins: true });
    const own = python.globals.get("dict")();
    const value = await python.runPythonAsync(data, { filename: "<code>", globals: python.globals });
    python.runPython(${JSON.stringify(SHOW)}, { globals: own });
    const shown = own.get("_shown")(value), plots = own.get("_plots")();
    if (plots) for (const picture of plots.split("\\n")) say({ picture });
    say({ value: JSON.parse(shown) });
  } catch (error) {
    say({ error: String(error?.message ?? error).replace(/^ *File "\\/lib\\/python[^]*?(?=^ *File "<code>")/m, "") });
  }
  say({ ends: true });
};`;
/** The document of the frame. @param {string} base */
const DOCUMENT = (base) => `<!doctype html><meta charset="utf-8"><meta http-equiv="content-security-policy" content="default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval' blob: ${base}; connect-src ${base}; worker-src blob:; form-action 'none'; base-uri 'none'"><body><script>
const worker = new Worker(URL.createObjectURL(new Blob([${JSON.stringify(WORKER(base)).replaceAll("<", "\\u003c")}], { type: "text/javascript" })));
worker.onmessage = ({ data }) => parent.postMessage(data, "*");
worker.onerror = ({ message }) => parent.postMessage({ failed: message || "" }, "*");
addEventListener("message", ({ source, data }) => source === parent && worker.postMessage(data));
parent.postMessage({ isReady: true }, "*");
</script>`;

/** @type {Set<Program>} Those that run. */
const running = new Set();
addEventListener("message", ({ source, data }) => {
  for (const one of running) if (source && source === one.frame?.contentWindow) one.take(data);
});
// A program ends with its block: in another chat nobody could stop it.
const leaving = new MutationObserver(() => {
  for (const one of running) if (!one.place.isConnected) one.end(one.frames.labels.stopped);
});

class Program {
  /** @param {HTMLElement} pre @param {import("./blocks.js").Frames} frames @param {Actions} actions */
  constructor(pre, frames, actions) {
    this.pre = pre;
    this.frames = frames;
    this.actions = actions;
    const { labels } = frames;
    /** @type {HTMLIFrameElement | undefined} */
    this.frame = undefined;
    this.error = "";
    this.signs = this.messages = this.pictures = 0;
    this.written = "";
    this.timer = /** @type {any} */ (undefined);
    this.said = make("span", { role: "status" });
    this.stops = make("button", { type: "button", className: "plain" }, labels.stop);
    this.fixes = make("button", { type: "button", className: "plain" }, labels.fix);
    this.closes = make("button", { type: "button", className: "plain" }, labels.close);
    this.bar = make("p", { className: "bar" }, this.said, this.stops, this.fixes, this.closes);
    this.text = make("div", { className: "out", dir: "ltr" });
    this.made = make("div", { className: "made" });
    this.place = make("section", { className: "python", "data-own": "1", "aria-label": labels.output }, this.bar, this.text, this.made);
    this.stops.addEventListener("click", () => this.end(labels.stopped));
    this.fixes.addEventListener("click", () => this.fix());
    this.closes.addEventListener("click", () => this.close());
  }

  run() {
    const { options } = this.frames, base = new URL(options.python ?? "", document.baseURI).href;
    this.drop();
    [this.error, this.written, this.signs, this.messages, this.pictures] = ["", "", 0, 0, 0];
    this.text.replaceChildren();
    this.made.replaceChildren();
    this.pre.append(this.place);
    this.code = codeOf(this.pre);
    this.frame = make("iframe", { "aria-hidden": "true", tabIndex: -1, style: UNSEEN, referrerPolicy: "no-referrer", sandbox: "allow-scripts", srcdoc: DOCUMENT(base) });
    running.add(this);
    leaving.observe(document.body, { childList: true, subtree: true });
    document.body.append(/** @type {HTMLIFrameElement} */ (this.frame));
    this.tell(this.frames.labels.starting);
  }

  /** Read what the frame says: it is a stranger. @param {any} said */
  take(said) {
    const { labels } = this.frames;
    if ((this.messages += 1) > MOST_MESSAGES) return this.end(labels.tooMuch);
    if (said?.isReady) return this.frame?.contentWindow?.postMessage(this.code, "*");
    if (said?.begins) return this.tell(labels.runs);
    if (said?.isCut) return this.add(`\n${labels.cutOutput}\n`);
    if (typeof said?.out === "string") return this.add(said.out);
    if (typeof said?.picture === "string") return this.picture(said.picture);
    if (said?.value) return this.value(said.value);
    if (typeof said?.failed === "string") return this.end(labels.pythonFailed.replace("{why}", () => said.failed.slice(0, MOST_CELL) || labels.noWorker));
    if (typeof said?.error === "string") {
      this.error = said.error.trim().slice(-MOST_ERROR);
      return this.add(`${this.error}\n`);
    }
    const missing = /^ModuleNotFoundError: .*?'([\w.]+)'/m.exec(this.error)?.[1];
    if (said?.ends && missing) return this.end(labels.noPackage.replace("{name}", () => missing));
    if (said?.ends) this.end(this.error ? labels.runFailed : this.written.trim() || this.made.childElementCount ? labels.ended : labels.noOutput);
  }

  /** @param {string} text */
  add(text) {
    this.written += text.slice(0, Math.max(0, MOST_SIGNS + MOST_ERROR - this.signs));
    this.signs += text.length;
    this.timer ??= setTimeout(() => this.draw(), DRAW_MS);
  }

  draw() {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.text.textContent = this.written;
  }

  /** @param {string} data */
  picture(data) {
    if ((this.pictures += 1) > MOST_PICTURES || data.length > MOST_PICTURE || !/^[A-Za-z0-9+/=]+$/.test(data)) return;
    this.made.append(make("img", { src: `data:image/png;base64,${data}`, alt: this.frames.labels.plotted.replace("{number}", String(this.pictures)) }));
  }

  /** Show the value of the last line. @param {any} value */
  value({ text, head, rows, count }) {
    const { labels } = this.frames;
    if (typeof text === "string" && text) return this.add(`${text}\n`);
    if (!Array.isArray(head) || !Array.isArray(rows)) return;
    const cell = (/** @type {string} */ tag) => (/** @type {any} */ one) => make(tag, {}, String(one).slice(0, MOST_CELL));
    const lines = rows.filter(Array.isArray).slice(0, MOST_ROWS).map((row) => make("tr", {}, ...row.slice(0, MOST_COLUMNS).map(cell("td"))));
    const table = make("table", {}, make("thead", {}, make("tr", {}, ...head.slice(0, MOST_COLUMNS).map(cell("th")))), make("tbody", {}, ...lines));
    this.made.append(make("div", { className: "rows", tabIndex: 0, role: "group", "aria-label": labels.wideTable }, table));
    if (Number(count) > MOST_ROWS) this.made.append(make("p", {}, labels.rows.replace("{count}", String(MOST_ROWS))));
  }

  /** @param {string} text */
  tell(text) {
    this.said.textContent = text;
    this.stops.hidden = !this.frame;
    this.closes.hidden = Boolean(this.frame);
    this.fixes.hidden = Boolean(this.frame) || !this.error || !this.frames.options.canFix;
  }

  /** End the run, and say how it ended. @param {string} text */
  end(text) {
    const hadFocus = document.activeElement === this.stops;
    this.drop();
    this.draw();
    this.tell(text);
    if (hadFocus) this.closes.focus({ preventScroll: true });
  }

  drop() {
    running.delete(this);
    if (!running.size) leaving.disconnect();
    this.frame?.remove();
    this.frame = undefined;
  }

  close() {
    this.place.remove();
    /** @type {HTMLElement | null} */ (this.pre.querySelector(":scope > .tools > [data-action=run]"))?.focus({ preventScroll: true });
  }

  /** Ask the model for the code without the error. */
  fix() {
    const { labels } = this.frames, ticks = "`".repeat(1 + Math.max(2, ...(this.error.match(/`+/g) ?? []).map(({ length }) => length)));
    this.actions.fire("fix", { text: `${labels.runText}\n\n${ticks}\n${this.error}\n${ticks}\n\n${labels.fixAsk}` });
  }
}

/** @type {WeakMap<HTMLElement, Program>} */
const known = new WeakMap();
/** Run the code of this block. A program that runs begins anew. @param {HTMLElement} pre @param {import("./blocks.js").Frames} frames @param {Actions} actions */
export async function run(pre, frames, actions) {
  await styled(new URL("python.css", import.meta.url).href);
  if (!pre.isConnected) return;
  const program = known.get(pre) ?? new Program(pre, frames, actions);
  known.set(pre, program);
  program.run();
}
