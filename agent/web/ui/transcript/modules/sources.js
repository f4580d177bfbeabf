// The numbers of sources in answers: pointing at one, or reaching it with the keyboard, shows the source and the cited
// passage. A number of a web page is a link. One of a document, and the document's title in the list below the answer, is
// the event `transcript:source`.
import { make } from "./elements.js";

const LINGER_MS = 150; // so that the pointer can cross a gap
let cards = 0;

/** @typedef {import("./edits.js").Source} Source @typedef {import("./edits.js").Turn} Turn */

/** @param {Source} source @param {Record<string, string>} labels */
const placeOf = ({ url, page }, labels) =>
  url ? new URL(url).hostname.replace(/^www\./, "") : page === null ? "" : labels.page.replace("{page}", String(page));

/** @param {Turn} turn @param {HTMLElement} chip @returns {Source | undefined} */
const sourceOf = (turn, chip) => turn.sources?.find(({ number }) => String(number) === chip.dataset.source);

/** @param {HTMLElement} chip @param {Source} source */
const passageOf = (chip, { passages }) => passages[Number(chip.dataset.passage ?? 1) - 1] ?? "";

/** Give the numbers in a block their names. @param {Element} part @param {Turn} turn @param {Record<string, string>} labels */
export function nameSources(part, turn, labels) {
  for (const chip of /** @type {NodeListOf<HTMLElement>} */ (part.querySelectorAll(".mark[data-source]"))) {
    const source = sourceOf(turn, chip);
    if (!source) continue;
    const title = [source.title || labels.document, placeOf(source, labels)].filter(Boolean).join(", ");
    chip.setAttribute("aria-label", labels.source.replace("{number}", String(source.number)).replace("{title}", () => title));
  }
}

/**
 * @param {HTMLElement} frame
 * @param {HTMLElement} scroller
 * @param {import("./draw.js").Drawing} drawing
 * @param {(name: string, detail: object) => void} fire
 */
export function showSources(frame, scroller, { options: { drawn }, labels }, fire) {
  const title = make("b", { dir: "auto" }), place = make("span"), quote = make("q", { dir: "auto" });
  const card = make("div", { className: "source", id: `source-${(cards += 1)}`, role: "tooltip", popover: "manual" }, title, place, quote);
  frame.append(card);
  /** @type {HTMLElement | undefined} */
  let shown;
  let leaving = 0;
  const hide = () => {
    clearTimeout(leaving);
    shown?.removeAttribute("aria-describedby");
    shown = undefined;
    if (card.matches(":popover-open")) card.hidePopover();
  };
  /** @param {EventTarget | null} target @returns {HTMLElement | null} */
  const chipAt = (target) => (target instanceof Element ? target.closest("[data-source]") : null);
  /** @param {HTMLElement} chip */
  const turnOf = (chip) => drawn.get(/** @type {Element} */ (chip.closest("[data-turn]")))?.turn;
  /** @param {HTMLElement} chip */
  const show = (chip) => {
    clearTimeout(leaving);
    const turn = turnOf(chip), source = turn && sourceOf(turn, chip);
    if (shown === chip || !source || !chip.matches(".mark")) return;
    hide();
    shown = chip;
    title.textContent = source.title || labels.document;
    place.textContent = placeOf(source, labels);
    quote.textContent = passageOf(chip, source);
    quote.hidden = !quote.textContent;
    chip.setAttribute("aria-describedby", card.id);
    card.showPopover();
    const { left, top, bottom } = chip.getBoundingClientRect(), { offsetWidth: width, offsetHeight: height } = card;
    card.style.left = `${Math.max(8, Math.min(left, innerWidth - width - 8))}px`;
    card.style.top = `${bottom + height + 8 < innerHeight ? bottom + 4 : Math.max(8, top - height - 4)}px`;
  };
  document.addEventListener("pointerover", ({ target, pointerType }) => {
    const chip = pointerType === "touch" || !frame.contains(/** @type {Node} */ (target)) ? null : chipAt(target);
    if (chip?.matches(".mark")) show(chip);
    else if (card.contains(target)) clearTimeout(leaving);
    else if (shown && shown !== document.activeElement) {
      clearTimeout(leaving);
      leaving = setTimeout(hide, LINGER_MS);
    }
  });
  scroller.addEventListener("focusin", ({ target }) => {
    const chip = chipAt(target);
    if (chip?.matches(".mark:focus-visible")) show(chip);
    else hide();
  });
  scroller.addEventListener("focusout", hide);
  scroller.addEventListener("scroll", hide, { passive: true });
  scroller.addEventListener("click", ({ target }) => {
    const chip = chipAt(target), turn = chip && turnOf(chip), source = turn && sourceOf(turn, chip);
    if (!chip || !source || !chip.matches("button")) return;
    hide();
    if (source.title) fire("source", { turn: turn.id, source, passage: passageOf(chip, source), opener: chip });
    else list(turn.id, source.number);
  });
  // Before Escape stops an answer, it closes what is open.
  window.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !shown) return;
    event.stopImmediatePropagation();
    hide();
  }, true);
  /** Show a source in the list below its answer. @param {string} id @param {number} number */
  const list = (id, number) => {
    /** @type {HTMLElement | null} */
    const item = scroller.querySelector(`[data-turn="${CSS.escape(id)}"] .bubble[data-kind="sources"] li[value="${number}"]`);
    const details = item?.closest("details");
    if (!item || !details) return;
    details.open = true;
    item.tabIndex = -1;
    item.focus({ preventScroll: true });
    item.scrollIntoView({ block: "nearest" });
  };
  return { list, /** Close the card of a number that is not there any more. */ keep: () => shown?.isConnected || hide() };
}
