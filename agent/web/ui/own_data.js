// What the server keeps of the visitor, in the settings: a summary, the download of it, and its deletion.
({ call, said, language, $, when, root, make, button, sizeOf }) => {
  let guest = "";
  const ask = async (method) => {
    const address = new URL(`${root}/own-data`, location);
    if (guest) address.searchParams.set("guest", guest);
    const answer = await fetch(address, { method, headers: { "accept-language": language }, cache: "no-store" });
    const value = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Error(value.detail || said.chats_failed);
    return value;
  };
  const number = (value) => value.toLocaleString(language);
  const isNothing = ({ conversations, messages, files, unsent_files }) =>
    !(conversations || messages || files || unsent_files);
  let isDeleted = false; // the visitor has deleted everything since the settings were opened
  const told = (kept) => {
    isDeleted &&= isNothing(kept);
    if (isNothing(kept)) return isDeleted ? said.own_gone : said.own_nothing;
    const values = { chats: number(kept.conversations), messages: number(kept.messages),
      files: number(kept.files), size: sizeOf(kept.text_bytes + kept.file_bytes) };
    const date = kept.expires_at && new Date(kept.expires_at).toLocaleDateString(language, { dateStyle: "long" });
    // Those that were removed from the composer count, too. They are deleted like those of a page that was left.
    const unsent = kept.unsent_files ? ` ${said.own_unsent.replace("{files}", number(kept.unsent_files))}` : "";
    return said.own_kept.replace(/\{(\w+)\}/g, (_, name) => values[name]) + unsent +
      (date ? ` ${said.own_expires.replace("{date}", () => date)}` : "");
  };

  when("#own-data section", (section) => {
    const settings = $("#settings"), isOpen = () => settings.classList.contains("open");
    const state = make("p", { role: "status" });
    const save = button("save", said.own_download), drop = button("delete", said.own_delete);
    section.append(make("h2", {}, said.own_title), state, make("div", { class: "actions" }, save, drop));
    const asked = make("dialog", { id: "own-data-ask", "aria-labelledby": "own-data-title" });
    const cancel = button("cancel", said.camera_cancel), sure = button("delete", said.own_delete);
    asked.append(make("h2", { id: "own-data-title" }, said.own_delete), make("p", {}, said.own_ask),
      make("div", { class: "actions" }, cancel, sure));
    document.body.append(asked);

    let reading = 0; // only the newest reading is shown
    let wasOpen = isOpen();
    const read = async () => {
      const mine = ++reading;
      let text;
      try {
        text = told(await ask("GET"));
      } catch (error) {
        text = error instanceof TypeError ? said.chats_failed : error.message;
      }
      if (mine === reading) state.textContent = text;
    };
    new MutationObserver(() => {
      if (isOpen() === wasOpen) return; // Gradio has set another class
      wasOpen = isOpen();
      isDeleted &&= wasOpen;
      if (wasOpen && !drop.disabled) read();
    }).observe(settings, { attributes: true, attributeFilter: ["class"] });
    document.addEventListener("chat-view", ({ detail }) => {
      guest = detail.guest || guest;
      // A new chat has nothing that is stored.
      if (isOpen() && detail.conversation && !drop.disabled) read();
    });
    for (const event of ["chat-deleted", "chat-restored"]) {
      document.addEventListener(event, () => isOpen() && !drop.disabled && read());
    }
    if (isOpen()) read();

    save.addEventListener("click", () => document.dispatchEvent(new Event("export-all")));
    drop.addEventListener("click", () => {
      asked.showModal();
      cancel.focus();
    });
    cancel.addEventListener("click", () => asked.close());
    sure.addEventListener("click", async () => {
      asked.close();
      drop.disabled = true;
      reading++;
      try {
        const kept = await ask("DELETE");
        document.dispatchEvent(new Event("own-data-deleted"));
        window.composer.change(() => ({ text: "", files: [] })); // the draft that is shown, whose files are deleted
        call("reset"); // the page would send its settings with the next message, and the server remember them
        isDeleted = true; // a view of a chat that is on its way here is followed by another reading
        state.textContent = isNothing(kept) ? told(kept) : `${said.own_remains} ${told(kept)}`;
      } catch (error) {
        state.textContent = error instanceof TypeError ? said.chats_failed : error.message;
      }
      drop.disabled = false;
      drop.focus();
    });
  });
}
