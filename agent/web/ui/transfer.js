// Export and import in the list of chats. chats.js has the entries in the menu of a chat.
({ said, language, when, root, make }) => {
  let guest = "";
  document.addEventListener("chat-view", ({ detail }) => (guest = detail.guest || guest));

  // The browser saves the answer while it comes, and shows the progress itself.
  const save = (path, form) => {
    const address = new URL(`${root}/export${path}`, location);
    address.searchParams.set("format", form);
    if (guest) address.searchParams.set("guest", guest);
    const link = make("a", { href: address, download: "" });
    document.body.append(link);
    link.click();
    link.remove();
  };

  document.addEventListener("export-chat", ({ detail: { id, form } }) => save(`/${id}`, form));
  document.addEventListener("export-all", () => save("", "json"));

  // The foot of the list
  when("#chats", (aside) => {
    const choose = make("input", { type: "file", accept: ".json,.zip,application/json,application/zip", hidden: true });
    const bring = make("button", { type: "button", class: "import", title: said.import_what }, said.import);
    const every = make("button", { type: "button", class: "export" }, said.export_all);
    const state = make("p", { role: "status" });
    const bar = make("progress", { max: "100", "aria-label": said.importing, hidden: true });
    aside.append(make("div", { id: "chats-foot" }, make("div", {}, bring, every), bar, state, choose));
    every.addEventListener("click", () => save("", "json"));
    bring.addEventListener("click", () => choose.click());
    choose.addEventListener("change", () => {
      const [file] = choose.files;
      choose.value = "";
      if (file) send(file);
    });

    for (const kind of ["chat-opening", "message-stored"])
      document.addEventListener(kind, () => bar.hidden && (state.textContent = ""));
    const show = (percent) => {
      bar.hidden = percent === undefined;
      bring.disabled = !bar.hidden;
      if (percent !== undefined) bar.value = percent;
    };
    // The upload is the first third, reading the second, and storing the last.
    const THIRDS = { reading: 1, storing: 2 };
    const send = (file) => {
      const request = new XMLHttpRequest(); // fetch does not tell the progress of an upload
      request.open("POST", `${root}/import`);
      request.setRequestHeader("accept-language", language);
      show(0);
      state.classList.remove("bad");
      state.textContent = said.importing;
      request.upload.addEventListener("progress", ({ loaded, total }) => show((33 * loaded) / (total || 1)));
      request.addEventListener("progress", () => {
        const last = lines(request).findLast(({ type }) => type === "progress");
        if (last) show(33 * THIRDS[last.phase] + (34 * last.done) / (last.total || 1));
      });
      request.addEventListener("loadend", () => {
        show();
        const last = lines(request).at(-1);
        state.classList.toggle("bad", last?.type !== "done");
        state.textContent = last?.message ?? last?.detail ?? said.import_failed;
        if (last?.type === "done") document.dispatchEvent(new Event("chats-imported"));
      });
      request.send(file);
    };
    const lines = (request) => request.responseText.split("\n").flatMap((line) => {
      try {
        return line ? [JSON.parse(line)] : [];
      } catch {
        return []; // the line has not come whole
      }
    });
  });
}
