// How full the model's window is: a ring beside the name of the model, its figures when it is pressed, and above the
// composer an offer to summarize the oldest messages. live.js asks for the figures, and loads this when they say something.
import { $, button, language, make, said, shown } from "./shared.js";

const number = new Intl.NumberFormat(language), percent = new Intl.NumberFormat(language, { style: "percent" });
const ring = make("button", { type: "button", id: "window-button", popovertarget: "window-figures", "aria-haspopup": "dialog", "aria-expanded": "false" });
const figures = make("div", { id: "window-figures", popover: "auto", role: "dialog", "aria-label": said.window });
const note = make("p", { id: "window-note", role: "status" });
const busy = new Set(); // the chats of which a summary is being written

const fill = (text, values) => Object.entries(values).reduce((all, [name, value]) => all.replace(`{${name}}`, () => value), text);
const summarize = (act) => {
  const one = button("summarize", "");
  one.addEventListener("click", async () => {
    const chat = shown.conversation;
    busy.add(chat);
    tellBusy();
    await act();
    busy.delete(chat);
    tellBusy();
    if (chat === shown.conversation) figures.hidePopover();
  });
  return one;
};
const tellBusy = () => {
  const isBusy = busy.has(shown.conversation), textContent = isBusy ? said.window_summarizing : said.window_summarize;
  for (const each of document.querySelectorAll("button.summarize")) Object.assign(each, { disabled: isBusy, textContent });
};
const place = () => {
  const { top, right } = ring.getBoundingClientRect(), most = innerWidth - figures.offsetWidth - 16;
  Object.assign(figures.style, { bottom: `${innerHeight - top + 8}px`, right: `${Math.max(16, Math.min(most, innerWidth - right - 40))}px` });
};
figures.addEventListener("toggle", ({ newState }) => {
  ring.setAttribute("aria-expanded", newState === "open");
  if (newState === "open") place();
});
addEventListener("resize", () => figures.matches(":popover-open") && place());
$("#model-button").before(ring);
document.body.append(figures);
$("#dock").before(note);

/** Show the figures of the chat, or nothing. `act` lets the model summarize. @param {any} [use] @param {() => Promise<void>} [act] */
export function show(use, act) {
  ring.hidden = !use;
  if (!use) figures.hidePopover();
  note.replaceChildren(...(use?.is_offered && act ? [use.left_out ? said.window_left : said.window_full, " ", summarize(act)] : []));
  if (!use || !act) return;
  const { share, tokens, window: size, room, cost } = use;
  const label = fill(said.window_share, { percent: percent.format(share) });
  ring.style.setProperty("--share", String(share));
  ring.toggleAttribute("data-full", share >= 0.85);
  ring.title = label;
  ring.setAttribute("aria-label", label);
  const used = Math.round(share * room); // our own count, if that is higher than the server's
  const lines = [
    fill(use.is_estimated || used > tokens ? said.window_about : said.window_tokens, { tokens: number.format(used), window: number.format(room) }),
    fill(said.window_free, { count: number.format(size - room) }),
    ...(cost ? [fill(said.window_cost, { amount: new Intl.NumberFormat(language, { maximumSignificantDigits: 2 }).format(cost) })] : []),
    ...(use.left_out ? [said.window_left] : []),
    ...(use.is_too_small && share >= 0.85 ? [said.window_small] : []),
    ...(use.has_summary ? [said.window_summarized] : []),
  ];
  figures.replaceChildren(make("b", {}, label), ...lines.map((line) => make("p", {}, line)), ...(use.can_summarize ? [summarize(act)] : []));
  tellBusy();
}
