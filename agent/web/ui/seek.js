// Goes to the message that a search has found: shows its branch, lets older turns come, scrolls to the first of the words,
// and marks them for a moment. What the visitor does meanwhile, and the end of the search, ends it.
({ $, frame }) => {
  const WAIT_MS = 15000, MARK_MS = 3000, FRAMES = 30, MOST = 500;
  let wish = 0;
  for (const kind of ["wheel", "touchmove", "pointerdown", "keydown"]) {
    addEventListener(kind, () => wish++, { passive: true, capture: true });
  }

  const rowOf = ({ message, is_answer }) => {
    const turn = $(`#chat [data-turn="${CSS.escape(message)}"]`);
    const found = turn?.querySelectorAll(is_answer ? "article.answer" : "article.mine") ?? [];
    return [...found].at(is_answer ? -1 : 0);
  };
  // The places of the words in a row. Those that are divided by formatting have none.
  const rangesOf = (row, words, most) => {
    const forms = [...new Set(words)].sort((one, other) => other.length - one.length);
    const pattern = new RegExp(forms.map((word) => word.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&")).join("|"), "giu");
    const texts = document.createTreeWalker(row, NodeFilter.SHOW_TEXT), ranges = [];
    for (let text = texts.nextNode(); text; text = texts.nextNode()) {
      if (text.parentElement.closest("details, .caption")) continue;
      for (const { 0: word, index } of text.data.matchAll(pattern)) {
        if (ranges.length === most) return ranges;
        const range = document.createRange();
        range.setStart(text, index);
        range.setEnd(text, index + word.length);
        ranges.push(range);
      }
    }
    return ranges;
  };

  let leaving;
  const clear = () => {
    clearTimeout(leaving);
    $("#chat [data-found]")?.removeAttribute("data-found");
    CSS.highlights?.delete("found");
  };
  document.addEventListener("search-over", () => {
    wish++;
    clear();
  });
  const mark = (row, words) => {
    clear();
    row.dataset.found = "";
    CSS.highlights?.set("found", new Highlight(...rangesOf(row, words, MOST)));
    leaving = setTimeout(clear, MARK_MS);
  };

  const bring = async (place, isOver) => {
    let chosen = place.is_shown, ready = place.is_shown;
    while (!isOver()) {
      const isOpen = window.live.conversation === place.conversation && window.live.turns.length;
      if (isOpen && rowOf(place)) return true;
      if (isOpen && !chosen) {
        chosen = true;
        document.addEventListener("chat-view", () => (ready = true), { once: true });
        window.live.actions.version(place.message);
      } else if (isOpen && ready) window.live.earlier();
      await frame();
    }
    return false;
  };
  document.addEventListener("message-sought", async ({ detail: place }) => {
    const mine = ++wish, end = performance.now() + WAIT_MS;
    if (!(await bring(place, () => mine !== wish || performance.now() > end))) return;
    document.dispatchEvent(new Event("message-found"));
    const log = $("#chat .transcript");
    let row;
    for (let frames = 0; frames < FRAMES && mine === wish; frames++) { // rows that come into view get their true height
      row = rowOf(place);
      if (!row) return;
      const { top, height } = (rangesOf(row, place.words, 1)[0] ?? row).getBoundingClientRect();
      log.scrollTop += top + Math.min(height, log.clientHeight) / 2 - log.getBoundingClientRect().top - log.clientHeight / 2;
      if (frames === 0) mark(row, place.words);
      await frame();
    }
    if (row?.isConnected && mine === wish) mark(row, place.words);
  });
}
