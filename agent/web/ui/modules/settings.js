// What is below the settings: language and colours, and the visitor's data.
import { languages } from "texts";
import { exportChats } from "./chats.js";
import { composer } from "./composer.js";
import { call, colours } from "./gradio.js";
import { request } from "./network.js";
import { $, button, frame, kept as keptOfTab, language, make, ofAll, panel, root, said, sizeOf } from "./shared.js";

offerAppearance();
offerOwnData();

// The language and the colours, in the settings. The browser keeps both. The server makes the page in the language of the
// cookie, so another language needs another page.
function offerAppearance() {
  const COOKIE = "switchboard_language", YEAR = 365 * 24 * 3600, OPENING_FRAMES = 60;
  // A page in a frame of another site has cookies of its own there.
  const how = location.protocol === "https:" ? "SameSite=None; Secure; Partitioned" : "SameSite=Lax";
  const keep = (chosen) => {
    document.cookie = `${COOKIE}=${chosen}; Path=${root || "/"}; Max-Age=${chosen ? YEAR : 0}; ${how}`;
  };
  const kept = () => new RegExp(`(?:^|; )${COOKIE}=(\\w+)`).exec(document.cookie)?.[1] ?? "";
  const nameOf = (code) => {
    const name = new Intl.DisplayNames([code], { type: "language" }).of(code);
    return name[0].toLocaleUpperCase(code) + name.slice(1);
  };
  const menu = (name, values, chosen, choose) => {
    const options = values.map(([value, text, lang]) => make("option", { value, ...(lang && { lang }) }, text));
    const select = make("select", { id: `choose-${name}` }, ...options);
    select.value = chosen;
    select.addEventListener("change", () => choose(select.value));
    return make("div", { class: "choice" }, make("label", { for: select.id }, said[name]), select);
  };
  // The page was loaded again in the middle of the settings. What they hold can take the focus some frames after they open.
  const openAgain = async () => {
    keptOfTab.set("language-chosen", undefined);
    if (!panel.isOpen()) panel.open(true);
    const select = $("#choose-language");
    for (let frames = 0; document.activeElement !== select && frames < OPENING_FRAMES; frames++) {
      select.focus();
      await frame();
    }
  };
  const usual = ["", said.as_in_browser];
  const aloud = make("input", { type: "checkbox", checked: Boolean(ofAll?.getItem("aloud")) });
  aloud.addEventListener("change", () => (aloud.checked ? ofAll?.setItem("aloud", "1") : ofAll?.removeItem("aloud")));
  panel.content.append(make("div", { id: "aloud", class: "setting" }, make("label", { class: "tick" }, aloud, make("span", {}, said.aloud))));
  panel.content.append(make("section", { id: "appearance", "aria-label": said.appearance },
    menu("language", [usual, ...languages.map((code) => [code, nameOf(code), code])], kept(), (chosen) => {
      keep(chosen);
      kept(); // Chromium can set a cookie a moment later. Reading waits for that, and a reload does not.
      keptOfTab.set("language-chosen", true);
      location.reload();
    }),
    menu("colours", [usual, ["light", said.light], ["dark", said.dark]], colours.chosen(), colours.choose)));
  if (keptOfTab.get("language-chosen")) openAgain();
}

// What the server keeps of the visitor, in the settings: a summary, the download of it, and its deletion.
function offerOwnData() {
  const ask = (method) => request("/own-data", { method });
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

  const section = make("section");
  panel.content.append(make("div", { id: "own-data" }, section));
  const state = make("p", { role: "status" });
  const save = button("save", said.own_download), drop = button("delete", said.own_delete);
  section.append(make("h2", {}, said.own_title), state, make("div", { class: "actions" }, save, drop));
  const asked = make("dialog", { id: "own-data-ask", "aria-labelledby": "own-data-title" });
  const cancel = button("cancel", said.camera_cancel), sure = button("delete", said.own_delete);
  asked.append(make("h2", { id: "own-data-title" }, said.own_delete), make("p", {}, said.own_ask),
    make("div", { class: "actions" }, cancel, sure));
  document.body.append(asked);

  let reading = 0; // only the newest reading is shown
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
  document.addEventListener("settings:toggled", () => {
    isDeleted &&= panel.isOpen();
    if (panel.isOpen() && !drop.disabled) read();
  });
  document.addEventListener("chat-view", ({ detail }) => {
    // A new chat has nothing that is stored.
    if (panel.isOpen() && detail.conversation && !drop.disabled) read();
  });
  for (const event of ["chat-deleted", "chat-restored"]) {
    document.addEventListener(event, () => panel.isOpen() && !drop.disabled && read());
  }
  if (panel.isOpen()) read();

  save.addEventListener("click", () => exportChats("", "json"));
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
      composer.change(() => ({ text: "", files: [] })); // the draft that is shown, whose files are deleted
      call("reset"); // the page would send its settings with the next message, and the server remember them
      isDeleted = true; // a view of a chat that is on its way here is followed by another reading
      state.textContent = isNothing(kept) ? told(kept) : `${said.own_remains} ${told(kept)}`;
    } catch (error) {
      state.textContent = error instanceof TypeError ? said.chats_failed : error.message;
    }
    drop.disabled = false;
    drop.focus();
  });
}
