// One message that waits for the end of the answer, above the composer. It is sent if the answer is complete. Otherwise,
// or if the visitor takes it back, it goes into the composer.
({ call, said, $, box, when, soft, hint, write, make, kept, joined, nameOf }) => {
  const thumbnails = "#composer .thumbnail-item", pending = "#composer :is(.loader, .recording-overlay)";
  const stop = () => $("#composer .input-row > .stop-button");
  let queued; // { text, files, chat }; its files are undefined until the composer has given them
  let isSending = false;
  let running = false, complete = false; // of the answer in the chat that is shown
  // The chats that were left with a queued message, which is in their drafts now. Each says so when it is shown again, also
  // after a reload.
  const unsent = new Set(kept.get("unsent"));

  const title = make("p", { id: "queued-title" }), text = make("p", { class: "text", dir: "auto" });
  const files = make("p", { class: "files", dir: "auto" });
  const back = make("button", { type: "button" }, said.chats_undo);
  const panel = make("section", { id: "queued", "aria-labelledby": "queued-title", hidden: true },
    make("div", {}, title, text, files), back);
  const spoken = make("p", { class: "sr-only", role: "status" });
  when("#dock", (dock) => dock.before(panel, spoken));
  // Where Enter begins a new line, a button beside the one that stops the answer lets the message wait.
  const later = make("button", { type: "button", class: "later-button", "aria-label": said.queue_later, title: said.queue_later, hidden: true });
  const offerLater = () => (later.hidden = !(soft.matches && stop() && !queued && (box()?.value.trim() || $(thumbnails))));
  later.addEventListener("click", () => {
    add();
    box().focus();
  });
  const draw = () => {
    offerLater();
    if (panel.hidden !== !queued) {
      spoken.textContent = queued ? said.queued : "";
      panel.hidden = !queued;
    }
    if (!queued) return;
    title.textContent = isSending ? said.queue_sending : said.queued;
    text.textContent = queued.text.trim();
    files.textContent = (queued.files ?? []).map(nameOf).join(", ");
    back.hidden = isSending;
  };

  const add = () => {
    if (window.composer.isSending()) return;
    if (queued) return hint(said.queue_full, () => queued);
    if ($(pending)) return hint(said.still_writing, stop);
    const mine = (queued = { text: box().value, chat: window.live.conversation });
    write(box(), "");
    if (!$(thumbnails)) mine.files = [];
    else window.composer.change((value) => {
      if (queued !== mine) return undefined;
      mine.files = [...value.files];
      draw();
      setTimeout(settle);
      return { ...value, files: [] };
    });
    settle();
  };
  // Says once how a message can wait, because the button stops the answer meanwhile.
  let isExplained = false;
  document.addEventListener("input", ({ target, isTrusted }) => {
    if (target === box()) offerLater();
    if (soft.matches) return;
    const canWait = () => Boolean(stop() && !queued && box()?.value.trim());
    if (isExplained || !isTrusted || target !== box() || !canWait()) return;
    isExplained = true;
    hint(said.queue_how, canWait);
  }, true);
  // Says that a message with this text was not sent, until the next one is sent or the composer no longer has the text.
  let sent = 0;
  document.addEventListener("message-sent", () => (sent += 1));
  const hintUnsent = (text = "") => {
    const before = sent;
    hint(said.queue_unsent, () => sent === before && box()?.value.includes(text.trim()));
  };
  // Puts the message into the composer, before what was written there meanwhile. Returns its text.
  const takeBack = () => {
    if (!queued) return undefined;
    const { text, files } = queued;
    [queued, isSending] = [undefined, false];
    draw();
    if (text.trim()) write(box(), joined({ text }, { text: box().value }).text);
    if (files?.length) window.composer.add(files);
    return text;
  };
  back.addEventListener("click", () => {
    takeBack();
    window.composer.returned(said.queue_returned);
  });
  const send = () => {
    isSending = true;
    draw();
    call("queued");
  };
  // Decides what becomes of the message as soon as the answer has ended and the page shows its end.
  const settle = () => {
    draw();
    if (!queued?.files || isSending || running || stop() || !$("#composer .submit-button")) return;
    if ($(":root[data-running]") || $("#sending p")) return;
    if (complete && !$("#offline")?.textContent) return send();
    hintUnsent(takeBack());
  };

  document.addEventListener("chat-view", ({ detail }) => {
    if (queued && !queued.chat) queued.chat = detail.conversation; // a new chat gets its id after its first message is stored
    if (queued && !isSending && detail.conversation !== queued.chat) takeBack(); // a copy of the chat, or none
    [running, complete] = [Boolean(detail.live), detail.complete];
    setTimeout(settle); // the composer gets its buttons at the same time
  });
  when("#composer .input-row", (row) => {
    row.append(later);
    new MutationObserver(settle).observe(row, { childList: true });
  });
  when("#sending", (panel) => new MutationObserver(settle).observe(panel, { childList: true, subtree: true }));
  new MutationObserver(settle).observe(document.documentElement, { attributeFilter: ["data-running"] });
  document.addEventListener("chat-shown", ({ detail }) => {
    if (unsent.delete(detail.id)) when("#composer textarea", () => hintUnsent());
  });
  addEventListener("pagehide", () => { // before chats.js keeps the draft
    const marked = [...unsent];
    if (queued?.text.trim() && !isSending) {
      marked.push(queued.chat);
      hintUnsent(queued.text); // for a browser that keeps the page and shows it again
    }
    takeBack();
    kept.set("unsent", marked);
  });

  window.queue = {
    add,
    // Whether a message waits, so that a later one must not overtake it.
    waits: () => Boolean(queued),
    // Gets the values that an event sends, and returns them with the queued message in place of the composer's, after what is told.
    sending: (values) => {
      document.dispatchEvent(new Event("message-sent"));
      const message = { text: queued?.text ?? "", files: queued?.files ?? [] };
      return [window.composer.told(message), ...values.map((value) => (Array.isArray(value?.files) ? message : value))];
    },
    // `isNew`: the server has stored it.
    sent: (isNew) => {
      if (!isSending) return;
      if (!isNew) return takeBack();
      [queued, isSending] = [undefined, false];
      draw();
    },
    // Gets the composer's value when another chat is opened, and returns the draft of the chat that is left.
    keep: (value) => {
      if (!queued || isSending) return value;
      const mine = queued;
      queued = undefined;
      unsent.add(mine.chat);
      draw();
      return { ...value, ...joined(mine, value) };
    },
  };
}
