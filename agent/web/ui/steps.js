// Shows and hides the steps of an answer below their row, "Thought 2.7 s · 4 tools". The server says how many steps a row
// has. Gradio opens and closes the row as it does with any fold, and the steps follow it before the page is drawn. So a
// step stays a bubble of its own, and a growing text costs nothing here.
({ $, when }) => {
  const clear = ({ dataset }) => {
    delete dataset.row;
    delete dataset.step;
  };
  const set = (message, kind, value) => {
    if (message.dataset[kind] === value) return;
    clear(message);
    message.dataset[kind] = value;
  };
  // Failed steps and those that wait for the visitor are never hidden.
  const stateOf = (title, isOpen) => (isOpen ? "open" : $(".failed, .waits", title) ? "kept" : "folded");
  // Gradio's folds do not say whether they are open, and their arrow is a second stop of the Tab key.
  const nameFold = (title) => {
    title.setAttribute("aria-expanded", title.classList.contains("expanded"));
    const arrow = $(".arrow", title);
    if (arrow && !arrow.inert) arrow.inert = true;
  };
  // The first chatbot has whole turns, and the others together the turn that is being written.
  const arrange = (chatbots) => {
    const others = new Set(chatbots.querySelectorAll("[data-row], [data-step]"));
    let row, left = 0;
    for (const group of chatbots.querySelectorAll(".thought-group")) {
      const message = group.closest(".message"), title = group.firstElementChild, steps = $(".steps", title);
      nameFold(title);
      if (group.parentElement.closest(".thought-group")) continue;
      others.delete(message);
      if (steps) {
        [row, left] = [title, Number(/\bof-(\d+)/.exec(steps.className)?.[1])];
        const isOpen = row.classList.contains("expanded");
        set(message, "row", isOpen ? "open" : "folded");
      } else if (left-- > 0) {
        const state = stateOf(title, row.classList.contains("expanded"));
        if (state === "folded" && message.contains(document.activeElement)) row.focus({ preventScroll: true });
        set(message, "step", state);
      } else clear(message);
    }
    for (const message of others) clear(message); // they show something else now
  };
  const isOurs = ({ type, target }) => {
    const element = target.nodeType === Node.TEXT_NODE ? target.parentElement : target;
    if (type === "attributes") return element.matches(".title");
    return !element.closest(".prose") || Boolean(element.closest(".thought-group > .title"));
  };
  when("#chat #running", (running) => {
    const all = [$("#chat > .block"), running];
    new MutationObserver((changes) => {
      const ours = changes.filter(isOurs);
      for (const chatbots of all) if (ours.some(({ target }) => chatbots.contains(target))) arrange(chatbots);
    }).observe($("#chat"), { childList: true, subtree: true, attributes: true, attributeFilter: ["class"] });
    all.forEach(arrange);
  });
}
