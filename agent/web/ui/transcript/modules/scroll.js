// Follows the end of the text while the reader is there, and offers a button to the end otherwise.

const NEAR = 40;

/**
 * @param {HTMLElement} scroller
 * @param {HTMLElement} content what grows in it
 * @param {HTMLElement} toEnd the button
 */
export function followEnd(scroller, content, toEnd) {
  let follows = true, last = scroller.scrollTop;
  const rest = () => scroller.scrollHeight - scroller.clientHeight - scroller.scrollTop;
  const toTheEnd = () => {
    scroller.scrollTop = scroller.scrollHeight;
    last = scroller.scrollTop;
  };
  // Only a reader scrolls up. What grows, folds or loads moves the end, and the place stays.
  scroller.addEventListener("scroll", () => {
    if (rest() <= NEAR) follows = true;
    else if (scroller.scrollTop < last - 1) follows = false;
    last = scroller.scrollTop;
    toEnd.hidden = follows;
  }, { passive: true });
  toEnd.addEventListener("click", () => {
    follows = true;
    toEnd.hidden = true;
    toTheEnd();
  });
  // The sizes are known then, so that this costs no layout of its own.
  const watch = new ResizeObserver(() => {
    if (follows) toTheEnd();
    toEnd.hidden = follows || rest() <= NEAR;
  });
  watch.observe(content);
  watch.observe(scroller);
  return {
    /** Hold the place of what the reader sees while `change` puts something above it. @param {() => void} change */
    hold(change) {
      const top = scroller.getBoundingClientRect().top;
      const seen = follows ? undefined : [...content.children].find((one) => one.getBoundingClientRect().bottom > top);
      const before = seen?.getBoundingClientRect().top ?? 0;
      change();
      if (seen?.isConnected) scroller.scrollTop += seen.getBoundingClientRect().top - before;
      last = scroller.scrollTop;
    },
    follow: () => {
      follows = true;
      toTheEnd();
    },
  };
}
