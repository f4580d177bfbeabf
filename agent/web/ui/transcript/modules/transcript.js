// The transcript of a chat, in a page of one's own or as the script of `Transcript` in Gradio.
import { listen } from "./actions.js";
import { Drawing, make } from "./draw.js";
import { Editing } from "./editing.js";
import { followEnd } from "./scroll.js";

/**
 * Draw a transcript in this element. Its events are called `transcript:copy`, `transcript:choose`, `transcript:retry` and
 * so on, and their details have the turn's id.
 * @param {HTMLElement} element
 * @param {{labels: Record<string, string>, language?: string, actions?: string[], height?: string,
 *   textOf?: (turn: string, part?: string) => Promise<string>}} options `textOf` gives the text of an
 *   answer or of a "message" where the turn has none.
 */
export function mount(element, { labels, language, actions, height, textOf }) {
  const turns = make("div", { className: "turns" });
  const earlier = make("button", { type: "button", className: "earlier", hidden: true, "data-print": labels.notPrinted }, labels.earlier);
  const scroller = make("div", { className: "transcript", role: "log", "aria-live": "off", "aria-label": labels.chat, tabIndex: 0 }, earlier, turns);
  const toEnd = make("button", { type: "button", className: "to-end", title: labels.toEnd, "aria-label": labels.toEnd, hidden: true });
  const said = make("p", { className: "said", role: "status" });
  if (height) scroller.style.maxHeight = height;
  element.append(make("div", { className: "transcript-frame" }, scroller, toEnd, said));
  const drawing = new Drawing(turns, labels, { language, actions, hasTexts: Boolean(textOf) });
  const place = followEnd(scroller, turns, toEnd);
  /** @param {string} text */
  const say = (text) => (said.textContent = text);
  /** @param {string} name @param {object} detail */
  const fire = (name, detail) => element.dispatchEvent(new CustomEvent(`transcript:${name}`, { detail, bubbles: true }));
  const editing = new Editing(drawing, { textOf, fire });
  listen(scroller, drawing, { fire, textOf, say, edit: (id) => editing.begin(id) });
  earlier.addEventListener("click", () => fire("earlier", {}));
  /** Tell a screen reader what has come to its end. @param {() => void} draw */
  const announced = (draw) => {
    const running = [...drawing.views.values()].filter(({ turn }) => turn.is_running);
    draw();
    const ended = running.find(({ turn }) => !turn.is_running);
    if (running.length) say(ended ? (ended.turn.bubbles.some(({ state }) => state === "waiting") ? labels.asks : labels.ready) : "");
  };
  return {
    /** Show these turns in place of what is shown. @param {import("./edits.js").Turn[]} all @param {{hasEarlier?: boolean}} options */
    show(all, { hasEarlier = false } = {}) {
      const first = turns.firstElementChild?.getAttribute("data-turn");
      const draw = () => announced(() => {
        earlier.hidden = !hasEarlier;
        drawing.show(all);
      });
      first && all[0]?.id !== first ? place.hold(draw) : draw();
      editing.keep();
    },
    /** Apply the edits of one turn, of the last one if no id is given. Returns the turn. @param {import("./edits.js").Edit[]} edits @param {string} [id] */
    apply(edits, id = turns.lastElementChild?.getAttribute("data-turn") ?? "") {
      announced(() => drawing.apply(edits, id));
      return drawing.view(id).turn;
    },
    /** Edit the message of this turn. @param {string} id */
    edit: (id) => editing.begin(id),
    /** Close the box in which a message is edited. */
    edited: () => editing.end(),
    /** What was typed into the box of a message that is edited. */
    unsent: () => editing.unsent(),
    toEnd: place.follow,
  };
}

/**
 * Run the component in Gradio.
 * @param {HTMLElement} element
 * @param {{props: any, trigger: (name: string, data: object) => void, watch: (name: string, then: () => void) => void, events: string[]}} gradio
 */
export async function connect(element, { props, trigger, watch, events }) {
  await styled();
  const { show } = mount(element, props);
  for (const name of events) element.addEventListener(`transcript:${name}`, ({ detail }) => trigger(name, detail));
  const draw = () => show(props.value ?? []);
  watch("value", draw);
  draw();
}

/** Load the style sheet, once in a page. */
function styled() {
  const href = new URL("transcript.css", import.meta.url).href;
  if ([...document.styleSheets].some((sheet) => sheet.href === href)) return Promise.resolve();
  const link = make("link", { rel: "stylesheet", href });
  return new Promise((loaded) => {
    link.onload = link.onerror = () => loaded(undefined);
    document.head.append(link);
  });
}
