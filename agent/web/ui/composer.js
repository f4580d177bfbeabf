// Empties the composer once its message is stored. What was typed or attached while it was being sent stays. Lets other
// scripts read and change the composer's value.
({ call, said, $, box, hint, write, kept, joined }) => {
  let tried = kept.get("sent"); // the id and the content of the last message that was sent, until it is stored
  let sent = tried?.sent, seen, edits = [], isFreed = false; // `sent` is what is taken away once it is stored
  let attached = []; // the files
  let undone = kept.get("undone"); // the last message that was taken back
  let isSending = false; // until the server has stored or refused the message
  addEventListener("pagehide", () => {
    kept.set("sent", tried);
    kept.set("undone", undone);
  });
  const messageOf = ({ text, files }) => ({ text, paths: files.map(({ path }) => path) });
  const isSame = (one, other) => JSON.stringify(messageOf(one)) === JSON.stringify(messageOf(other));
  const takeTextAway = () => {
    const text = box().value, { text: gone } = sent;
    if (text.startsWith(gone)) write(box(), text.slice(gone.length).trimStart());
    sent = { ...sent, text: "" };
  };
  // Takes away what was sent, as the visitor would do it: a new value of the composer would undo what is typed while Gradio
  // sets it.
  const takeAway = (value) => {
    if (!sent) return;
    const { paths } = sent;
    takeTextAway();
    sent = undefined; // once only, because what is typed next can begin with the same words
    const buttons = document.querySelectorAll("#composer .thumbnail-item .delete-button");
    const last = (value?.files ?? []).map(({ path }, n) => (paths.includes(path) ? buttons[n] : undefined)).reverse();
    last.forEach((button) => button?.click());
  };
  // The answer to a message can be lost, for example if the server restarts. Then the stored chat shows it.
  document.addEventListener("chat-view", ({ detail: { turns } }) => {
    if (!tried || !turns?.some(({ id }) => id === tried.id)) return;
    tried = undefined;
    isSending = false;
    if (sent) takeTextAway(); // at once, so that it cannot be sent with another id
    window.composer.change((value) => void takeAway(value));
  });
  document.addEventListener("composer-value", ({ detail }) => {
    const before = detail.value ?? { text: "", files: [] };
    const after = edits.splice(0).reduce((now, edit) => edit(now) ?? now, before);
    const buttons = isFreed && { submit_btn: true, stop_btn: false }, isNew = after !== before;
    isFreed = false;
    attached = after.files;
    if (buttons || isNew) detail.update = { __type__: "update", ...buttons, ...(isNew && { value: after }) };
    if (!isNew) return;
    window.prompts?.swapped(after);
    setTimeout(() => document.dispatchEvent(new Event("files-changed")));
  });
  window.composer = {
    // Calls `edit` with the value of the composer a moment later, and sets what it returns unless that is undefined.
    change: (edit) => {
      edits.push(edit);
      call("compose");
    },
    // Shows the button that sends again, because the answer has ended.
    free: () => {
      isFreed = true;
      call("compose");
    },
    files: () => attached,
    // Puts files before those in the composer. They count at once, because a page that is left does not wait.
    add: (files) => {
      attached = [...files, ...attached];
      window.composer.change((value) => ({ ...value, files: [...files, ...value.files] }));
    },
    // Gets the values that an event sends, and returns them after what is told. That of the composer has files.
    sending: (values) => {
      document.dispatchEvent(new Event("message-sent"));
      const value = values.find((one) => Array.isArray(one?.files)) ?? { text: "", files: [] };
      isSending = true;
      return [window.composer.told(value), ...values];
    },
    // Says that "Undo" has put a message into the composer, and moves the focus there, because its button goes.
    returned: (sentence) => {
      hint(sentence, () => box()?.value.trim());
      box()?.focus();
    },
    // Puts a message that was taken back into the composer, before what is there, unless that is a message that was taken
    // back before.
    undone: (value) => window.composer.change((draft) => {
      const isTyped = (draft.text.trim() || draft.files.length) && !(undone && isSame(draft, undone));
      undone = value;
      setTimeout(() => window.composer.returned(said.undone));
      return isTyped ? joined(value, draft) : value;
    }),
    // The message that was taken back is shown again. Takes it out of the composer, unless it was changed there.
    redone: () => {
      hint("");
      const mine = undone;
      undone = undefined;
      window.composer.change((value) => {
        if (!mine || !value.text.startsWith(mine.text)) return undefined;
        const { paths } = messageOf(mine);
        return { text: value.text.slice(mine.text.length).trimStart(), files: value.files.filter(({ path }) => !paths.includes(path)) };
      });
    },
    // Returns true while the composer still has a message that is on its way, for example at a second Enter.
    isSending: () => isSending && (sent?.text ? box().value.startsWith(sent.text) : !box().value),
    refused: () => (isSending = false),
    // Returns what the server is told with a message: its chat and its id.
    told: (value) => ({ chat: /\/c\/([\w-]+)$/.exec(location.pathname)?.[1] ?? "", message: window.composer.idOf(value) }),
    // Returns the id of a message. The same message that is sent again keeps it, so that the server stores it once.
    idOf: (value) => {
      sent = messageOf(value);
      const content = JSON.stringify([window.live.conversation, sent]);
      if (tried?.content === content) return `${tried.id} again`;
      const bytes = crypto.getRandomValues(new Uint8Array(16));
      tried = { content, sent, id: [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("") };
      return tried.id;
    },
    // Returns true if the server has stored another message since the last call.
    saw: (stored) => {
      const isNew = Boolean(stored) && stored !== seen;
      if (isNew) {
        [seen, tried] = [stored, undefined];
        document.dispatchEvent(new Event("message-stored"));
      }
      return isNew;
    },
    // `stored` has another id for each stored message.
    empty: (stored, value) => {
      isSending = false;
      if (window.composer.saw(stored)) takeAway(value);
    },
  };
}
