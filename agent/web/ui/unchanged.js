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

  // At each block of a text, Gradio's Markdown searches the rest of the text for each kind of formula. It finds none,
  // because it has taken them all out before. A list of this kind gives it nothing to search for.
  class Delimiters extends Array {
    static get [Symbol.species]() {
      return Array;
    }
    map(make) {
      const made = super.map(make);
      return made[0]?.start instanceof RegExp ? [] : made;
    }
  }
  const delimiters = gradio_config.components.map(({ props }) => props.latex_delimiters).find(Boolean);

  // A chatbot sets the direction of every message each time it changes, and Chromium then styles the message again. It
  // does not replace the one that page.js gives a bubble.
  const dir = Object.getOwnPropertyDescriptor(HTMLElement.prototype, "dir");
  Object.defineProperty(HTMLElement.prototype, "dir", {
    ...dir,
    set(value) {
      const now = this.getAttribute("dir");
      if (now === "auto" && this.getAttribute("role") === "article") return;
      if (value === "auto" || now !== value) dir.set.call(this, value);
    },
  });

  // Rules of Gradio with `:has()` that look into the whole page or into a whole message. Chromium applies them again at
  // each change below, which costs more the longer the chat is. The side bar's get an attribute of the page instead. The
  // others are for tables of data and 3D models in messages, which this page does not show.
  const simpler = [
    [/^\.sidebar-parent:has\(\.sidebar\.open\.right\)$/, ':root[data-settings="open"] .sidebar-parent'],
    [/^\.sidebar-parent, \.sidebar-parent:has\(\.sidebar\.open\)$/, ".sidebar-parent"],
    [/^\.sidebar-parent:has\(\.sidebar\.open:not\(\.right\)\)$/, ""],
    [/^\.bot\S*:has\(\.(?:model3D|table-wrap)\b/, ""],
    [/^\.message-wrap\S* \.bot:not\(:has\(\.table-wrap\)\) table,/, ""],
  ];
  const simplify = (sheet) => {
    for (let n = sheet.cssRules.length - 1; n >= 0; n--) {
      const rule = sheet.cssRules[n], found = simpler.find(([selector]) => selector.test(rule.selectorText));
      if (found?.[1]) rule.selectorText = found[1];
      else if (found) sheet.deleteRule(n);
      else if (rule.media) simplify(rule);
    }
  };
  for (const sheet of document.styleSheets) if (sheet.href?.startsWith(location.origin)) simplify(sheet);
  return {
    list: (messages) => Messages.from(messages),
    props: { __type__: "update", latex_delimiters: Delimiters.from(delimiters) },
  };
}
