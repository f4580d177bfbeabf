// Empties the composer once its message is stored. What was typed or attached while it was being sent stays.
(() => {
  let sent = { text: "", paths: [] }, seen = "";
  window.composer = {
    // Gets the values that an event sends, and returns them. The one of the composer has files.
    sending: (values) => {
      const value = values.find((one) => Array.isArray(one?.files)) ?? { text: "", files: [] };
      sent = { text: value.text, paths: value.files.map(({ path }) => path) };
      return values;
    },
    // Returns what the composer keeps. Each stored message has a number of its own in the view.
    rest: (view, value) => {
      if (!view?.sent || view.sent === seen) return [undefined];
      seen = view.sent;
      const text = value?.text ?? "";
      return [{
        text: text.startsWith(sent.text) ? text.slice(sent.text.length).trimStart() : text,
        files: (value?.files ?? []).filter(({ path }) => !sent.paths.includes(path)),
      }];
    },
  };
})
