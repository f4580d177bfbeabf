// Attached texts: a long text that is pasted becomes a file, and a click on a text file opens it to be edited.
({ call, said, $, box, when, hint, write, files: { attach, upload }, make, button, nameOf, sizeOf }) => {
  const LONGEST = 4000; // characters of a pasted text that stays in the box; max_plain_text_length in layout.py
  const LARGEST = 2_000_000; // bytes of a file that a text box can show
  const IS_TEXT = /^\.?[^.]+$|\.(txt|md|csv|json|py|log|toml|ya?ml|html|css|js)$/i; // or a name without an ending
  const thumbnails = () => [...document.querySelectorAll("#composer .thumbnail-item")];

  // A pasted text
  let names = [], last = 0; // the names of the attached files, and the number of the newest pasted text
  const pastedName = (number) => `${said.pasted_text.replace("{number}", number)}.txt`;
  const nextName = () => {
    do last++; while (names.includes(pastedName(last)));
    return pastedName(last);
  };
  window.addEventListener("paste", (event) => {
    const text = event.clipboardData?.getData("text") ?? "";
    if (event.target !== box() || text.length <= LONGEST) return;
    event.preventDefault();
    event.stopImmediatePropagation(); // Gradio would give each of them the same name
    if (box().readOnly) return hint(said.chats_sending, () => box()?.readOnly);
    attach([new File([text], nextName(), { type: "text/plain" })]);
  }, true);

  // The names of attached files: a button that opens a text, words for what has no picture of its own, and part of the
  // name of the button that removes it. Gradio reuses its thumbnails for other files.
  const mark = (value) => {
    const items = thumbnails(), files = value?.files ?? [];
    names = files.map(nameOf);
    if (!files.length && !$("#composer .loader")) last = 0;
    if (items.length !== files.length) return; // they are drawn a moment later
    for (const [n, item] of items.entries()) {
      const name = names[n], isText = IS_TEXT.test(name);
      const kind = isText ? "open-text" : $("img", item) ? "" : "file-name";
      let shown = $(":scope > :is(.open-text, .file-name)", item);
      if (shown && shown.className !== kind) {
        shown.remove();
        shown = undefined;
      }
      if (kind && !shown) {
        shown = make(isText ? "button" : "span", { class: kind, dir: "auto", ...(isText && { type: "button" }) });
        item.prepend(shown);
      }
      const size = files[n].size ? sizeOf(Math.max(files[n].size, 100)) : "", title = size ? `${name} · ${size}` : name;
      item.title = shown ? "" : title;
      if (shown && shown.title !== title) {
        [shown.textContent, shown.title] = [name, title];
        Object.assign(shown.dataset, { size, kind: /\.(\w{1,4})$/.exec(name)?.[1].toUpperCase() ?? "…" });
        if (isText) shown.setAttribute("aria-label", said.text_open.replace("{name}", () => name));
      }
      const remove = $(".delete-button", item);
      if (!remove) continue;
      remove.title = said.file_remove.replace("{name}", () => name);
      remove.setAttribute("aria-label", remove.title);
    }
  };
  const look = () => window.composer.change(mark);
  when("#composer", (composer) => {
    // Gradio's thumbnails are items without a list. The frame around them has a button too, so it cannot be the list.
    const list = document.createElement("span");
    list.setAttribute("role", "list");
    list.setAttribute("aria-label", said.labels["Uploaded files"]);
    const own = () => {
      const items = [...composer.querySelectorAll(".thumbnail-wrapper")];
      for (const [n, item] of items.entries()) item.id = `attached-${n + 1}`;
      list.setAttribute("aria-owns", items.map(({ id }) => id).join(" "));
      if (items.length) composer.append(list);
      else list.remove();
    };
    let seen = 0;
    new MutationObserver(() => {
      const now = thumbnails().length;
      if (now === seen) return;
      seen = now;
      own();
      setTimeout(look); // the composer's value has it by then
    }).observe(composer, { childList: true, subtree: true });
    look();
  });
  document.addEventListener("files-changed", look);

  // The dialog
  const title = make("h2", { id: "text-file-title", dir: "auto" });
  const area = make("textarea", { "aria-labelledby": "text-file-title", dir: "auto", spellcheck: false });
  const state = make("p", { role: "status" });
  const cancel = button("cancel", said.camera_cancel), back = button("back", said.text_back), save = button("save", said.text_save);
  const dialog = make("dialog", { id: "text-file", "aria-labelledby": "text-file-title" },
    title, area, state, make("div", { class: "actions" }, cancel, back, save));
  document.body.append(dialog);
  let open; // the file that the dialog is about, and its text as it was attached

  const place = ({ files = [] } = {}) => files.findIndex(({ path }) => path === open?.file.path);
  const show = async (file) => {
    try {
      if (file.size > LARGEST) throw new Error("too large for a text box");
      const answer = await fetch(file.url);
      if (!answer.ok) throw new Error(answer.statusText);
      const text = new TextDecoder("utf-8", { fatal: true }).decode(await answer.arrayBuffer());
      open = { file, text };
    } catch {
      return hint(said.text_unreadable.replace("{name}", () => nameOf(file)));
    }
    title.textContent = nameOf(file);
    area.value = open.text;
    state.textContent = "";
    dialog.showModal();
    area.focus();
    area.setSelectionRange(0, 0);
    area.scrollTop = 0;
  };
  document.addEventListener("click", ({ target }) => {
    const item = target.closest?.("#composer .open-text")?.closest(".thumbnail-item");
    if (!item || box().readOnly) return;
    const n = thumbnails().indexOf(item);
    window.composer.change((value) => void (value.files[n] && show(value.files[n])));
  });

  const remove = () => window.composer.change((value) => {
    const n = place(value);
    if (n >= 0) return { ...value, files: value.files.toSpliced(n, 1) };
  });
  const end = () => {
    dialog.close();
    box()?.focus();
  };
  cancel.addEventListener("click", () => dialog.close());
  back.addEventListener("click", () => {
    const text = box().value.trimEnd();
    write(box(), text ? `${text}\n\n${area.value}` : area.value);
    remove();
    end();
  });
  // The file is attached as long as the new one is not there, so that a broken upload loses nothing.
  const store = async () => {
    if (area.value === open.text) return end();
    if (!area.value.trim()) return remove(), end();
    save.disabled = true;
    state.textContent = "";
    try {
      const name = nameOf(open.file);
      const changed = await upload(new File([area.value], name, { type: open.file.mime_type || "text/plain" }));
      window.composer.change((value) => {
        const n = place(value);
        if (n >= 0) return { ...value, files: value.files.with(n, changed) };
      });
      setTimeout(() => call("attached")); // its size may matter
      end();
    } catch {
      state.textContent = said.text_unsaved;
      area.focus();
    }
    save.disabled = false;
  };
  save.addEventListener("click", store);
  area.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || save.disabled) return;
    event.preventDefault();
    store();
  });
}
