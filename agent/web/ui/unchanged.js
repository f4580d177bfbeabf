// Keeps Gradio's chatbots from working on messages that have not changed. Without it, the page looks the same.
() => {
  // A chatbot copies all its messages each time it changes, so that it reads every text again. A list of this kind gives
  // the same copy for the same message. Messages that belong together are copied anew, because their copies are linked.
  const copies = new WeakMap();
  class Messages extends Array {
    static get [Symbol.species]() {
      return Array;
    }
    flatMap(copy) {
      return super.flatMap((message, n) => {
        const { title, parent_id } = message.metadata ?? {};
        if (title || parent_id) return copy(message, n);
        if (copies.get(message)?.n !== n) copies.set(message, { n, made: copy(message, n) });
        return copies.get(message).made;
      });
    }
  }

  // A chatbot sets the direction of every message each time it changes, and Chromium then styles the message again.
  const dir = Object.getOwnPropertyDescriptor(HTMLElement.prototype, "dir");
  Object.defineProperty(HTMLElement.prototype, "dir", {
    ...dir,
    set(value) {
      if (value === "auto" || this.getAttribute("dir") !== value) dir.set.call(this, value);
    },
  });

  // Gradio makes room for an open side bar with `:has()`. For the left side, which has none, Chromium searches the whole
  // page each time it changes.
  const searching = /^\.sidebar-parent:has\(\.sidebar\.open:not\(\.right\)\)$/;
  const forget = () => {
    for (const { href, cssRules } of document.styleSheets) {
      const at = href?.startsWith(location.origin) ? [...cssRules].findIndex(({ selectorText }) => searching.test(selectorText)) : -1;
      if (at >= 0) cssRules[at].parentStyleSheet.deleteRule(at);
    }
  };
  forget();
  return { list: (messages) => Messages.from(messages) };
}
