// Says of each message of the chat what it shows, as `data-kind`, and of each turn whether a text of it is in parts. The
// style could find it out with `:has()`, but Chromium then looks through the whole turn whenever something is added to it.
// For screen readers, a caption gets a name of its own in place of the one that page.js gives to answers.
({ $, when }) => {
  const KINDS = { part: ".seam", steps: ".thought-group", question: ".asking", problem: ".problem", file: ":scope > .edit-textarea", caption: ".caption:not([role])" };
  const MESSAGE = ".message > .message"; // the outer one is the turn
  const kindOf = (message) => Object.keys(KINDS).find((kind) => $(KINDS[kind], message));
  const mark = (messages, turns) => {
    for (const message of messages) {
      const kind = kindOf(message);
      if (message.dataset.kind === kind) continue;
      const bubble = $("[data-testid=bot]", message);
      if (kind === "caption") bubble?.setAttribute("aria-labelledby", "caption-bubble");
      else if (message.dataset.kind === "caption") bubble?.setAttribute("aria-labelledby", "bot-bubble");
      if (kind) message.dataset.kind = kind;
      else delete message.dataset.kind;
      turns.add(message.parentElement);
    }
    for (const turn of turns) turn.toggleAttribute("data-parts", Boolean($(":scope > [data-kind=part]", turn)));
  };
  when("#chat #running", () => {
    const chat = $("#chat");
    new MutationObserver((changes) => {
      const messages = new Set(), turns = new Set();
      for (const { target, addedNodes } of changes) {
        const changed = target.closest(MESSAGE);
        if (changed) {
          messages.add(changed);
          continue;
        }
        if (target.matches(".message")) turns.add(target);
        for (const node of addedNodes) {
          if (node.matches?.(MESSAGE)) messages.add(node);
          node.querySelectorAll?.(MESSAGE).forEach((message) => messages.add(message));
        }
      }
      mark(messages, turns);
    }).observe(chat, { childList: true, subtree: true });
    mark(chat.querySelectorAll(MESSAGE), new Set());
  });
}
