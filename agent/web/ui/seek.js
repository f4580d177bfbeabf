// Goes to the message that a search has found: shows its branch, lets older turns come, scrolls to the word, and marks it
// for a moment. What the visitor does meanwhile ends it.
({ $, frame }) => {
  const WAIT_MS = 15000, MARK_MS = 3000, FRAMES = 30;
  let wish = 0;
  for (const kind of ["wheel", "touchmove", "pointerdown", "keydown"]) {
    addEventListener(kind, () => wish++, { passive: true, capture: true });
  }

  const rowOf = ({ message, is_answer }) => {
    const asked = $(`#chat .user-row[data-message="${CSS.escape(message)}"]`);
    if (!asked || !is_answer) return asked;
    const rows = [...document.querySelectorAll("#chat .message-row")];
    const after = rows.slice(rows.indexOf(asked) + 1), end = after.findIndex((row) => row.dataset.message);
    return after.slice(0, end < 0 ? undefined : end).findLast((row) => row.matches(".bot-row"));
  };
  // The place of the word in a row. There is none if the word is divided by formatting.
  const rangeOf = (row, word) => {
    const texts = document.createTreeWalker(row, NodeFilter.SHOW_TEXT);
    for (let text = texts.nextNode(); word && text; text = texts.nextNode()) {
      const at = text.data.toLowerCase().indexOf(word.toLowerCase());
      if (at < 0 || at + word.length > text.length || text.parentElement.closest(".thought-group, .caption")) continue;
      const range = document.createRange();
      range.setStart(text, at);
      range.setEnd(text, at + word.length);
      return range;
    }
    return undefined;
  };

  let leaving;
  const mark = (row, range) => {
    clearTimeout(leaving);
    const clear = () => {
      $("#chat [data-found]")?.removeAttribute("data-found");
      CSS.highlights?.delete("found");
    };
    clear();
    row.dataset.found = "";
    if (range && CSS.highlights) CSS.highlights.set("found", new Highlight(range));
    leaving = setTimeout(clear, MARK_MS);
  };

  const bring = async (place, isOver) => {
    let chosen = place.is_shown, ready = place.is_shown;
    while (!isOver()) {
      const isOpen = window.live.conversation === place.conversation && window.live.messages.length;
      if (isOpen && rowOf(place)) return true;
      if (isOpen && !chosen) {
        chosen = true;
        document.addEventListener("chat-view", () => (ready = true), { once: true });
        window.addressed.branch = place.message;
        $("#version").click();
      } else if (isOpen && ready) window.live.earlier();
      await frame();
    }
    return false;
  };
  document.addEventListener("message-sought", async ({ detail: place }) => {
    const mine = ++wish, end = performance.now() + WAIT_MS;
    if (!(await bring(place, () => mine !== wish || performance.now() > end))) return;
    document.dispatchEvent(new Event("message-found"));
    const log = $("#chat");
    let row, range;
    for (let frames = 0; frames < FRAMES && mine === wish; frames++) { // rows that come into view get their true height
      row = rowOf(place);
      if (!row) return;
      range = rangeOf(row, place.word);
      const { top, height } = (range ?? row).getBoundingClientRect();
      log.scrollTop += top + Math.min(height, log.clientHeight) / 2 - log.getBoundingClientRect().top - log.clientHeight / 2;
      if (frames === 0) mark(row, range);
      await frame();
    }
    if (row?.isConnected && mine === wish) mark(row, range);
  });
}
