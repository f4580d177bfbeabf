// What a reader sees of the transcript. The newest line stays in view until the reader scrolls up. Shrinking content moves
// the view up, too, so a move counts as the reader's only after their input or while the content is still.

const EMPTY = 20; // px below the last answer, and above a row that moves up
const AROUND_BUTTON = 52; // px that the button to the end needs
const NEAR_END = 160; // px of a last line with what is below it: they are shown too if the view moves anyway
const INPUT_MS = 1500, STILL_MS = 300, TURN_MS = 500;

/**
 * @param {HTMLElement} scroller
 * @param {HTMLElement} content what grows in it
 * @param {HTMLElement} toEnd the button
 * @param {() => void} near called again and again while the reader is near the first line
 */
export function followEnd(scroller, content, toEnd, near) {
  let follows = true, isHeld = false, top = scroller.scrollTop, settling = 0;
  let touched = -Infinity, turnedUp = -Infinity, changed = -Infinity;
  /** @type {Element | undefined} */
  let pinned; // it does not move: somebody types in it
  let returns = false; // the end is shown again when that element is gone, because the reader has not scrolled meanwhile
  const rest = () => scroller.scrollHeight - scroller.clientHeight - scroller.scrollTop;
  const offer = () => {
    const isHidden = follows || rest() <= EMPTY;
    if (toEnd.hidden !== isHidden) toEnd.hidden = isHidden;
  };
  const follow = (/** @type {boolean} */ yes) => {
    follows = yes && !pinned?.isConnected;
    scroller.style.overflowAnchor = follows ? "none" : ""; // the browser must not anchor to a line that is to move up
    offer();
  };
  const toTheEnd = () => {
    scroller.scrollTo({ top: scroller.scrollHeight, behavior: "instant" });
    top = scroller.scrollTop;
  };
  const end = () => {
    touched = turnedUp = -Infinity; // what the reader did before does not explain a later move of the view
    pinned = undefined;
    follow(true);
    toTheEnd();
  };
  // A busy page draws the next frame late, and tells of the scrolling that a change caused only then.
  const change = () => {
    changed = Infinity;
    settling ||= requestAnimationFrame(() => requestAnimationFrame(() => {
      changed = performance.now();
      settling = 0;
    }));
  };
  const touch = () => (touched = performance.now());

  scroller.addEventListener("scroll", () => {
    const now = performance.now(), isUp = scroller.scrollTop < top - 1;
    if (rest() < 3) {
      if (now - turnedUp > TURN_MS) follow(true); // else it may be the page's own move, which came before the turn
    } else if (isUp && follows) {
      if (isHeld || now - touched < INPUT_MS || now - changed > STILL_MS) follow(false);
      else toTheEnd();
    }
    top = scroller.scrollTop;
    offer();
    if (!follows && !pinned?.isConnected && top < scroller.clientHeight) near();
  }, { passive: true });
  // The turn itself counts, because a busy page scrolls late, and text that comes before must not take the view down.
  scroller.addEventListener("wheel", ({ deltaY, ctrlKey }) => {
    if (ctrlKey) return; // the page is zoomed
    touch();
    returns = false;
    turnedUp = deltaY < 0 ? performance.now() : -Infinity;
    if (deltaY < 0 && scroller.scrollTop > 0) follow(false);
  }, { passive: true });
  scroller.addEventListener("touchmove", () => (returns = false), { passive: true });
  for (const kind of ["touchmove", "focusin"]) scroller.addEventListener(kind, touch, { passive: true });
  scroller.addEventListener("keydown", ({ target }) => {
    if (!/** @type {Element} */ (target).closest("input, textarea")) touch();
  });
  scroller.addEventListener("pointerdown", () => (isHeld = true));
  for (const kind of ["pointerup", "pointercancel", "pointermove"]) { // no "pointerup" comes of a scroll bar
    window.addEventListener(kind, (event) => (isHeld &&= /** @type {PointerEvent} */ (event).buttons > 0), { passive: true });
  }
  toEnd.addEventListener("click", end);

  // What the reader unfolds comes below the row that they clicked. The row stays where it is, or moves up as far as is
  // needed to show what was unfolded. Following goes on if the end is still in view then.
  const lastOf = (/** @type {Element} */ row) => {
    let last = row.closest(".bubble") ?? row;
    if (row.matches("summary")) return row.parentElement ?? row;
    for (let one = last.nextElementSibling; one?.matches(".step"); one = one.nextElementSibling) if (one.checkVisibility()) last = one;
    return last;
  };
  scroller.addEventListener("click", ({ target, isTrusted }) => {
    const row = /** @type {Element} */ (target).closest("details:not([open]) > summary, [aria-expanded=false]");
    if (!row || !isTrusted) return; // scripts turn folds, too
    follow(false);
    requestAnimationFrame(() => {
      const view = scroller.getBoundingClientRect();
      const hidden = lastOf(row).getBoundingClientRect().bottom + AROUND_BUTTON - view.bottom;
      const room = row.getBoundingClientRect().top - view.top - EMPTY, left = rest();
      if (hidden > 0 && room > 0) scroller.scrollTop += Math.min(left < hidden + NEAR_END ? left : hidden, room);
      top = scroller.scrollTop;
      if (rest() < 3) follow(true);
    });
  }, true);

  new MutationObserver(change).observe(content, { childList: true, subtree: true });
  const sizes = new ResizeObserver(() => { // the sizes are known then, so that this costs no layout of its own
    change();
    if (follows) toTheEnd();
    offer();
  });
  sizes.observe(content);
  sizes.observe(scroller);
  follow(true);
  return {
    /** Hold the place of what the reader sees while `draw` puts something above it. @param {() => void} draw */
    hold(draw) {
      const view = scroller.getBoundingClientRect().top;
      const seen = follows ? undefined : [...content.children].find((one) => one.getBoundingClientRect().bottom > view);
      const before = seen?.getBoundingClientRect().top ?? 0;
      draw();
      if (seen?.isConnected) scroller.scrollTop += seen.getBoundingClientRect().top - before;
      top = scroller.scrollTop;
    },
    /** Show the end, and follow it. */
    end,
    /** Follow the end no longer. */
    stay() {
      returns = false;
      follow(false);
    },
    /** Bring an element into view that must not move as long as it is there. @param {Element} element */
    pin(element) {
      returns ||= follows;
      pinned = element;
      follow(false);
      element.scrollIntoView({ block: "nearest", behavior: "instant" });
    },
    /** That element is gone. Following goes on if the end is in view, or was when the element came. */
    release() {
      pinned = undefined;
      if (returns) end();
      else if (rest() < 3) follow(true);
      returns = false;
    },
  };
}
