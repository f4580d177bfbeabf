// What Gradio forces on the page. It runs before Gradio's scripts. `tests/page/test_costs.py` and
// `tests/web/test_gradio_compat.py` fail if a part is no longer needed.
import { language, said } from "texts";

// Gradio's events and the page's scripts call each other: `asks` in events.py names what it asks, and `CALLS` in layout.py
// what a script can call, once Gradio listens.
const answers = new Map(), missed = new Map();
/** Let a script answer what an event of Gradio asks by this name. It gets the last event that came before it. */
export const answer = (name, then) => {
  answers.set(name, then);
  if (missed.has(name)) then(...missed.get(name));
  missed.delete(name);
};
document.addEventListener("gradio-event", ({ detail }) => {
  const { name, values } = detail, then = answers.get(name);
  if (then) detail.answer = then(...values);
  else missed.set(name, values);
});
/** Call the server with an event of Gradio. */
export const call = (name) => {
  const go = () => document.dispatchEvent(new CustomEvent("gradio-call", { detail: name }));
  if ("calls" in document.documentElement.dataset) go();
  else document.addEventListener("gradio-calls", go, { once: true });
};

// Gradio takes the first language of the browser. The server chooses the page's from all of them, and from a choice of the visitor.
if (navigator.language.split("-")[0] !== language) Object.defineProperty(navigator, "language", { get: () => language });

// Gradio follows the colours of the device, with a class of the body. The visitor's choice stays: page_head.py sets it first.
const device = matchMedia("(prefers-color-scheme: dark)"), { dataset } = document.documentElement;
const grounds = new Map([...document.querySelectorAll("meta[name=theme-color]")].map((meta) => [meta, meta.content]));
const [light, dark] = grounds.values(); // in this order
const showColours = () => {
  for (const [meta, own] of grounds) meta.content = { light, dark }[dataset.colours] ?? own;
  const isDark = (dataset.colours ?? (device.matches ? "dark" : "light")) === "dark";
  if (document.body.classList.contains("dark") !== isDark) document.body.classList.toggle("dark", isDark);
};
new MutationObserver(() => dataset.colours && showColours()).observe(document.body, { attributeFilter: ["class"] });
if (dataset.colours) showColours();
export const colours = {
  chosen: () => dataset.colours ?? "",
  /** Show these colours: "light", "dark", or "" as the device. */
  choose: (value) => {
    if (value) dataset.colours = value;
    else delete dataset.colours;
    showColours();
    try {
      if (value) localStorage.setItem("colours", value);
      else localStorage.removeItem("colours");
    } catch {
      // it lasts as long as the page
    }
  },
};

// Gradio's loading screen counts its seconds in every frame, and goes on when the page has replaced it: 60 frames a second,
// as long as the page is open. Nothing on this page shows seconds. Gradio keeps this function when its script begins.
const request = window.requestAnimationFrame.bind(window);
const counts = (callback) => /performance\.now\(\)\s*-[^;]*\/\s*1e3/.test(String(callback).slice(0, 200));
window.requestAnimationFrame = (callback) => {
  if (!counts(callback)) return request(callback);
  window.requestAnimationFrame = request;
  return 0;
};

// After an event that could not be sent, Gradio ignores everything until it can load the page again. So an event waits for
// the network: network.js says how long. `isOfTimer`: no visitor waits for it.
const send = window.fetch.bind(window);
let hold = (isOfTimer, go) => go();
export const holdEvents = (how) => (hold = how);
const isOfTimer = (body) => {
  const { trigger_id: trigger } = JSON.parse(body ?? "{}");
  return gradio_config.components.some(({ id, type }) => id === trigger && type === "timer");
};

// Gradio says nothing of an event that is answered directly and fails.
window.fetch = async (/** @type {any} */ where, how) => {
  if (!String(where?.url ?? where).includes("/gradio_api/run/")) return send(where, how);
  const isQuiet = isOfTimer(how?.body), answer = await hold(isQuiet, () => send(where, how));
  if (!answer.ok && !isQuiet) document.dispatchEvent(new Event("gradio-failed"));
  return answer;
};

/** Write into a text box as the keyboard does, so that Gradio learns of it. */
export const write = (area, text) => {
  area.value = text;
  area.dispatchEvent(new Event("input", { bubbles: true }));
};

/** Gradio's toasts. They have a class, but no id. */
export const TOASTS = ".toast-wrap";

// Gradio's toast says in English that the connection is lost, and has a button around another one.
const LOST = "Connection to the server was lost. Attempting reconnection...";
export const mendToasts = (toasts) => new MutationObserver(() => {
  for (const head of toasts.querySelectorAll(".toast-header[role]")) { // it need not be a button: the text that it folds is short
    head.removeAttribute("role");
    head.removeAttribute("tabindex");
    head.querySelector(".toast-close")?.setAttribute("aria-label", said.close);
  }
  for (const text of toasts.querySelectorAll("[data-testid=toast-text]:not([hidden])")) {
    if (text.textContent.replace(/\s+/g, " ").trim() !== LOST) continue;
    text.hidden = true;
    text.after(Object.assign(document.createElement("div"), { className: text.className, textContent: said.connection_lost }));
  }
}).observe(toasts, { childList: true, subtree: true });
