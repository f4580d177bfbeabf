// Addresses messages for edit, retry, undo and branches by their ids. The server never gets a position, because its list may have
// changed since the page got its own.
({ said, $, write, make, frame, unescaped }) => {
  const REDRAW_FRAMES = 60; // Gradio draws the arrows below an answer some frames after the rows
  const buttons = (row) => [...(row?.nextElementSibling?.querySelectorAll("button:not(.version)") ?? [])];
  const open = () => $("#chat .user-row:has(textarea.edit-textarea)");
  const find = (id) => $(`#chat .user-row[data-message="${CSS.escape(id)}"]`);
  let editing; // the open edit box: the id of its message, their chat, the text typed into it, and the message's own
  let later;
  let other = ""; // the model that answers the last message again, if it is not the composer's
  let walked; // the arrow that showed another version, until that is here: its kind, the version's id, and whether of an answer

  // The buttons below a message that show its other versions.
  const arrow = (kind, id) => {
    const name = said[`${kind}_question`], one = make("button", { type: "button", class: `version ${kind}`, value: id, title: name });
    one.disabled = !id;
    return one;
  };
  const offer = (row, versions) => {
    const line = row.nextElementSibling?.matches(".message-buttons") ? row.nextElementSibling : undefined;
    const old = line && $(".branches", line), key = JSON.stringify(versions ?? "");
    if (!line || old?.dataset.key === key || (!old && !versions)) return;
    old?.remove();
    if (!versions) return;
    const { ids, number } = versions, count = Object.assign(make("span"), { textContent: `${number}/${ids.length}` });
    line.append(make("span", { class: "branches", "data-key": key },
      arrow("older", ids[number - 2] ?? ""), count, arrow("newer", ids[number] ?? "")));
  };

  // live.js calls this with the messages of all chatbots when they show others. A row is a run of messages of one role.
  const held = (lists) => {
    const filled = lists.map((messages) => messages.filter(({ content }) => content.length));
    const rows = filled.flatMap((messages) => messages.filter(({ role }, n) => role !== messages[n - 1]?.role));
    window.addressed.last = filled.flat().findLast(({ role, metadata }) => role === "user" && metadata?.id)?.metadata.id ?? "";
    for (const [n, row] of document.querySelectorAll("#chat .message-row").entries()) {
      const { role, metadata } = rows[n] ?? {};
      row.dataset.message = (role === "user" && metadata?.id) || "";
      row.toggleAttribute("data-untyped", Boolean(metadata?.untyped));
      row.dataset.kept = (role === "user" && metadata?.kept) || "";
      offer(row, role === "user" ? metadata?.versions : undefined);
    }
    follow();
    refocus();
  };
  // The arrow that showed another version has the focus again, or the other arrow if there is no further version.
  const lineOf = ({ id, inAnswer }) =>
    (inAnswer ? $(`#chat .copy-branch[value="${CSS.escape(id)}"]`)?.parentElement : find(id)?.nextElementSibling);
  const refocus = async () => {
    for (let frames = 0; walked && frames < REDRAW_FRAMES; frames++) {
      const line = lineOf(walked), one = line && ($(`.${walked.kind}:not(:disabled)`, line) ?? $(".version:not(:disabled)", line));
      if (one) {
        walked = undefined;
        if (document.activeElement === document.body) one.focus({ preventScroll: true });
      } else await frame();
    }
  };

  const begin = (row, text) => {
    const mine = (editing = { id: row.dataset.message, chat: window.live.conversation, text });
    for (const message of row.querySelectorAll(".message > .message")) {
      const picture = $("img", message); // which the edit box replaces
      if (picture?.naturalWidth) message.style.setProperty("--picture", `url(${JSON.stringify(picture.src)})`);
      else message.style.removeProperty("--picture");
    }
    setTimeout(() => {
      const area = $("textarea.edit-textarea", row);
      if (!area) return;
      const { kept } = row.dataset; // its files, which the edit box hides
      row.style.setProperty("--kept", JSON.stringify(kept));
      area.setAttribute("aria-description", kept);
      mine.own = unescaped(area.value);
      const typed = text ?? mine.own;
      if (typed !== area.value) write(area, typed);
      document.dispatchEvent(new CustomEvent("edit-begun", { detail: area }));
    });
  };
  // What was typed into the edit box, unless it is what the message says.
  const unsent = () => (editing && editing.text !== editing.own ? (editing.text ?? "") : "");
  // Puts it into the composer of its chat.
  const keep = () => {
    const { chat } = editing ?? {}, text = unsent();
    editing = undefined;
    if (text) window.chats.keep(chat, text);
  };

  // Gradio's edit box stays at a place in the list. If the list changes, the box moves to its message. If the message
  // is gone, or is being answered again, or another chat is shown, the typed text goes into the composer of its chat.
  // Gradio then shows the box once more when that place has a message again.
  const follow = () => {
    clearTimeout(later);
    if (editing && editing.chat !== window.live.conversation) keep(); // at once; a copy of the chat has the same ids
    const shown = open();
    if (shown?.dataset.message === editing?.id) return;
    const { id, text } = editing ?? {};
    const cancel = buttons(shown).at(-1);
    const edit = editing && buttons(find(id)).at(-1);
    if (cancel?.disabled || edit?.disabled) return void (later = setTimeout(follow, 200));
    cancel?.click();
    if (!edit) return keep();
    editing = undefined;
    edit.click();
    begin(find(id), text);
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("#chat .message-buttons button:not(.version)");
    const row = button?.closest(".message-buttons").previousElementSibling;
    if (event.isTrusted) other = "";
    if (!row?.classList.contains("user-row")) return;
    const area = $("textarea.edit-textarea", row);
    const all = buttons(row);
    if (!area) {
      // Without typed text, Gradio would offer the file's Markdown, which the visitor did not write.
      if (button !== all.at(-1)) return;
      keep(); // Gradio has one edit box
      begin(row, row.hasAttribute("data-untyped") ? "" : undefined);
    } else if (button !== all[0]) editing = undefined;
    else {
      event.stopPropagation(); // Gradio would send a position
      event.preventDefault();
      if (!editing) return;
      editing.text = area.value;
      $("#edit").click();
    }
  }, true);
  document.addEventListener("input", (event) => {
    if (editing && event.target.matches?.("#chat textarea.edit-textarea")) editing.text = event.target.value;
  });
  document.addEventListener("own-data-deleted", () => (editing = undefined));
  document.addEventListener("message-sent", () => (window.addressed.copied = ""));

  // Buttons under a message or an answer: its other versions, and a copy of the branch.
  document.addEventListener("click", ({ target }) => {
    const button = target.closest?.("#chat .branches button");
    if (!button || button.disabled) return;
    window.addressed.branch = button.value;
    window.addressed.copied = button.matches(".copy-branch") ? window.live.conversation : "";
    const [name, kind] = button.classList;
    walked = name === "version" ? { id: button.value, kind, inAnswer: !button.matches(".message-buttons *") } : undefined;
    if (walked && !walked.inAnswer) document.dispatchEvent(new Event("question-chosen"));
    $(button.matches(".copy-branch") ? "#copy-branch" : "#version").click();
  });

  window.addressed = {
    last: "",
    branch: "", // the id of the message whose version is chosen, or whose branch is copied
    copied: "", // the chat of which a branch was copied last, if nothing was sent since
    held,
    // Answers the last message again with this model. `button` is Gradio's, which does so with the composer's.
    retry: (button, model) => {
      other = model;
      button.click();
    },
    // Returns the id of the last message, which is answered again, with the model if it is another than the composer's.
    again: () => {
      const model = other;
      other = "";
      return `${window.addressed.last} ${model}`.trim();
    },
    // Shows this message and what followed it last, instead of what took its place.
    show: (id) => {
      window.addressed.branch = id;
      $("#version").click();
    },
    unsent,
    edited: () => [editing?.id ?? "", editing?.text ?? ""],
    // The box stays open until the server has accepted the edit, so that a refusal loses nothing.
    done: () => {
      editing = undefined;
      buttons(open()).at(-1)?.click();
    },
  };
}
