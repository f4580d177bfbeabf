// What Gradio forces on the page. It runs before Gradio's scripts. `tests/page/test_costs.py` and
// `tests/web/test_gradio_compat.py` fail if a part is no longer needed.
import { language } from "texts";

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

// Gradio's client asks for an event, and opens a stream for the messages of all events, which it closes when none is left.
// Here the answer to the request brings the messages (see event_answer.py), and the client gets a stream that this script
// writes. If the answer breaks off, for example because the process stops, Gradio is told so, and loads the page again.
const END = /"msg":"(?:process_completed|unexpected_error)"/, send = window.fetch.bind(window);
let inbox; // of the stream that Gradio reads
const early = []; // messages before it reads one
const tell = (text) => (inbox ? inbox.enqueue(new TextEncoder().encode(text)) : early.push(text));
const openStream = (signal) => {
  const body = new ReadableStream({
    start: (stream) => {
      inbox = stream;
      early.splice(0).forEach(tell);
      signal?.addEventListener("abort", () => {
        if (inbox === stream) inbox = undefined;
        stream.error(signal.reason);
      });
    },
  });
  return new Response(body, { headers: { "content-type": "text/event-stream" } });
};
const readEvent = async ({ body }, id) => {
  const decoder = new TextDecoder(), chunks = body.getReader();
  let text = "", hasEnded = false;
  while (true) {
    const { value, done } = await chunks.read().catch(() => ({ done: true }));
    if (done) break;
    text += decoder.decode(value, { stream: true });
    const end = text.lastIndexOf("\n\n") + 2;
    if (end < 2) continue;
    const whole = text.slice(0, end);
    text = text.slice(end);
    hasEnded ||= END.test(whole);
    tell(whole);
  }
  if (!hasEnded) tell(`data: ${JSON.stringify({ msg: "broken_connection", event_id: id, message: "" })}\n\n`);
};
const join = async (where, how) => {
  const headers = new Headers(how.headers);
  headers.set("x-event-stream", "1");
  const answer = await send(where, { ...how, headers }), id = answer.headers.get("x-event-id");
  if (!id) return answer; // it was refused
  readEvent(answer, id);
  return Response.json({ event_id: id });
};

// After an event that could not be sent, Gradio ignores everything until it can load the page again. So an event waits for
// the network: network.js says how long. `isOfTimer`: no visitor waits for it.
let hold = (isOfTimer, go) => go();
export const holdEvents = (how) => (hold = how);
const isOfTimer = (body) => {
  const { trigger_id: trigger } = JSON.parse(body ?? "{}");
  return gradio_config.components.some(({ id, type }) => id === trigger && type === "timer");
};

window.fetch = (/** @type {any} */ where, how) => {
  const address = String(where?.url ?? where);
  if (address.includes("/queue/data?")) return Promise.resolve(openStream(how?.signal ?? where?.signal));
  if (address.includes("/queue/join")) return hold(isOfTimer(how?.body), () => join(where, how));
  return send(where, how);
};

/** Write into a text box as the keyboard does, so that Gradio learns of it. */
export const write = (area, text) => {
  area.value = text;
  area.dispatchEvent(new Event("input", { bubbles: true }));
};
