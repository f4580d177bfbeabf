// Empties the composer once its message is stored. What was typed or attached while it was being sent stays. Lets other
// scripts read and change the composer's value.
({ $, box, write }) => {
  let sent = { text: "", paths: [] }, seen, edits = [];
  window.composer = {
    // Calls `edit` with the value of the composer a moment later, and sets what it returns unless that is undefined.
    change: (edit) => {
      edits.push(edit);
      $("#compose")?.click();
    },
    changed: (value) => {
      const before = value ?? { text: "", files: [] };
      const after = edits.splice(0).reduce((now, edit) => edit(now) ?? now, before);
      if (after === before) return undefined;
      setTimeout(() => document.dispatchEvent(new Event("files-changed")));
      return after;
    },
    // Gets the values that an event sends, and returns them. The one of the composer has files.
    sending: (values) => {
      const value = values.find((one) => Array.isArray(one?.files)) ?? { text: "", files: [] };
      sent = { text: value.text, paths: value.files.map(({ path }) => path) };
      document.dispatchEvent(new Event("message-sent"));
      return values;
    },
    // Returns true if the server has stored another message since the last call.
    saw: (stored) => {
      const isNew = Boolean(stored) && stored.id !== seen;
      if (isNew) seen = stored.id;
      return isNew;
    },
    // Takes away what was sent, as the visitor would do it: a new value of the composer would undo what is typed while
    // Gradio sets it. `stored` has another id for each stored message.
    empty: (stored, value) => {
      if (!window.composer.saw(stored)) return;
      const text = box().value;
      if (text.startsWith(sent.text)) write(box(), text.slice(sent.text.length).trimStart());
      const buttons = document.querySelectorAll("#composer .thumbnail-item .delete-button");
      const last = (value?.files ?? []).map(({ path }, n) => (sent.paths.includes(path) ? buttons[n] : undefined)).reverse();
      last.forEach((button) => button?.click());
    },
  };
}
