// The transcript of a chat, in a page of one's own or as the script of `Transcript` in Gradio.
import { listen } from "./actions.js";
import { Drawing } from "./draw.js";
import { make, styled } from "./elements.js";
import { Editing } from "./editing.js";
import { followEnd } from "./scroll.js";
import { Speech } from "./speech.js";
import { showSources } from "./sources.js";

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
  const editing = new Editing(drawing, { textOf: textOf ?? (async () => ""), fire, fail, bring: place.pin, release: place.release });
  const { refocus } = listen(scroller, drawing, { fire, textOf, say, fail, edit: (id) => editing.begin(id) });
  drawing.nest = (root, inner) => void listen(root, inner, { fire, say, fail, edit: () => {} });
  const sources = showSources(frame, scroller, drawing, fire);
  earlier.addEventListener("click", () => fire("earlier", { isClicked: true }));
  toEnd.addEventListener("click", () => fire("end", {}));
  new MutationObserver(() => fire("away", { isAway: !toEnd.hidden })).observe(toEnd, { attributeFilter: ["hidden"] });
  return {
    /**
     * Show these turns in place of what is shown.
     * @param {import("./edits.js").Turn[]} all
     * @param {{hasEarlier?: boolean, isNew?: boolean}} options `isNew`: a screen reader hears the last turn from its beginning
     */
    show(all, { hasEarlier = false, isNew = false } = {}) {
      const first = turns.firstElementChild?.getAttribute("data-turn");
      const draw = () => {
        earlier.hidden = !hasEarlier;
        drawing.show(all);
      };
      first && all[0]?.id !== first ? place.hold(draw) : draw();
      editing.keep();
      refocus();
      sources.keep();
      speech.drawn(isNew);
    },
    /** Apply the edits of one turn, of the last one if no id is given. Returns the turn. @param {import("./edits.js").Edit[]} edits @param {string} [id] */
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
    edit: (id) => editing.begin(id),
    /** Close the box in which a message is edited, if the server has accepted what was sent. @param {boolean} isAccepted */
    edited: (isAccepted) => editing.edited(isAccepted),
    /** Close that box. Returns what was typed. */
    leave() {
      const text = editing.unsent();
      editing.end();
      return text;
    },
    /** What was typed into the box of a message that is edited. */
    unsent: () => editing.unsent(),
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
  await styled("transcript.css");
  const { show } = mount(element, props);
  for (const name of events) element.addEventListener(`transcript:${name}`, (event) => trigger(name, /** @type {CustomEvent} */ (event).detail));
  const draw = () => show(props.value ?? []);
  watch("value", draw);
  draw();
}
