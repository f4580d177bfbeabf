// The settings, which are drawn when they are opened for the first time: the browser's own controls, and below them the
// language, the colours and the visitor's data.
import { languages } from "texts";
import { exportChats } from "./chats.js";
import { composer } from "./composer.js";
import { call, colours } from "./gradio.js";
import { request } from "./network.js";
import { $, button, frame, kept as keptOfTab, language, make, ofAll, panel, root, said, sizeOf } from "./shared.js";

drawControls();
offerAppearance();
offerOwnData();

// The controls show what is set and said, and tell what the visitor sets.
function drawControls() {
  const HIGHEST = 2, STEP = 0.05, MOST_TOKENS = 10_000_000, labels = said.settings;
  const block = (id, ...children) => make("div", { id, class: "setting" }, ...children);
  const info = (id) => make("p", { id: `${id}-info`, class: "info" });
  const reset = () => make("button", { type: "button", class: "reset", title: labels.reset, "aria-label": labels.reset }, "↺");

  // Reasoning, tools, the web, and the extraction of text
  const ticks = Object.fromEntries([["reasoning", "reasoning"], ["tools", "tools"], ["web", "web"], ["extract_text", "extract-text"]].map(([name, id]) => {
    const input = make("input", { type: "checkbox", "aria-describedby": `${id}-info` }), note = info(id);
    input.addEventListener("change", () => panel.set(name, input.checked));
    return [name, { input, note, line: block(id, make("label", { class: "tick" }, input, make("span", {}, labels[name])), note) }];
  }));
  ticks.extract_text.note.setAttribute("role", "status"); // the switch above it can change what it says

  // The system prompt
  const area = make("textarea", { id: "system-text", rows: 3, placeholder: labels.system_how });
  const usualPrompt = reset();
  area.addEventListener("input", () => {
    panel.write(true); // what the server says of it comes too late then
    panel.set("system_message", area.value, true);
  });
  area.addEventListener("blur", () => panel.write(false));
  area.addEventListener("change", () => panel.set("system_message", area.value));
  usualPrompt.addEventListener("click", () => {
    const text = panel.about("system_message").usual ?? "";
    area.focus();
    area.select();
    // As if it were typed, so that it can be undone.
    if (!document.execCommand(text ? "insertText" : "delete", false, text)) area.value = text;
    panel.set("system_message", area.value);
  });

  // The temperature, as a number and on a scale. What cannot be used becomes the nearest one of the scale when the visitor
  // leaves the field. Its decimal mark is the browser's choice: Firefox goes by the `lang` of the page, Chromium by its own
  // language. A field of plain text would lose the arrow keys and the keyboard for numbers.
  const limits = { min: "0", max: `${HIGHEST}`, step: `${STEP}` };
  const number = make("input", { type: "number", id: "temperature-number", "aria-describedby": "temperature-info", ...limits });
  const scale = make("input", { type: "range", "aria-label": labels.temperature, ...limits });
  const usualTemperature = reset(), temperatureNote = info("temperature");
  const inside = (value) => Math.min(Math.max(value, 0), HIGHEST);
  const warm = (field, isTyped) => {
    if (field.value !== "") panel.set("temperature", inside(field.valueAsNumber), isTyped);
  };
  for (const field of [number, scale]) field.addEventListener("input", () => warm(field, true));
  scale.addEventListener("change", () => warm(scale, false));
  const leaveTemperature = () => {
    const nearest = Number((Math.round(panel.values().temperature / STEP) * STEP).toFixed(2));
    number.value = nearest;
    if (nearest !== panel.values().temperature) panel.set("temperature", nearest);
  };
  usualTemperature.addEventListener("click", () => panel.set("temperature", panel.about("temperature").usual ?? panel.values().temperature));

  // The limit of an answer. What cannot be one is put back when the visitor leaves the field, and the page says so.
  const limit = make("input", { type: "number", id: "max-tokens-number", min: "1", placeholder: labels.no_limit, "aria-describedby": "max-tokens-info" });
  const limitNote = info("max-tokens"), refused = make("p", { class: "refused", role: "alert" });
  let before = ""; // the last limit that can be used
  const most = () => panel.about("max_tokens").most ?? MOST_TOKENS;
  const limitOf = (text) => (text === "" ? null : Math.min(Number(text), most()));
  limit.addEventListener("input", () => {
    refused.replaceChildren();
    if (limit.validity.valid) panel.set("max_tokens", limitOf(limit.value), true);
  });
  const leaveLimit = () => {
    if (!limit.validity.valid) {
      limit.value = before;
      refused.textContent = labels.refused;
    } else if (Number(limit.value) > most()) {
      limit.value = most();
      refused.textContent = labels.lowered.replace("{count}", most().toLocaleString(language));
    }
    if (limit.value !== before) panel.set("max_tokens", limitOf(before = limit.value));
    else if (limitOf(before) !== panel.values().max_tokens) panel.set("max_tokens", limitOf(before));
  };
  // A window that loses the focus brings no change, and Enter need not. A field that was only passed through changes nothing.
  for (const [field, leave] of [[number, leaveTemperature], [limit, leaveLimit]]) {
    let isTouched = false;
    const left = () => {
      isTouched ? leave() : draw();
      isTouched = false;
    };
    field.addEventListener("input", () => (isTouched = true));
    for (const kind of ["change", "blur"]) field.addEventListener(kind, left);
    field.addEventListener("keydown", ({ key }) => key === "Enter" && left());
  }

  panel.content.prepend(
    make("h2", {}, labels.settings), make("p", {}, labels.hold),
    block("system", make("label", { for: area.id }, labels.system_message), area, usualPrompt),
    ticks.reasoning.line, ticks.tools.line, ticks.web.line, ticks.extract_text.line,
    block("temperature",
      make("div", { class: "head" }, make("label", { for: number.id }, make("span", {}, labels.temperature)), make("span", { class: "number" }, number, usualTemperature)),
      make("div", { class: "scale" }, make("span", { class: "min" }, "0"), scale, make("span", { class: "max" }, `${HIGHEST}`)), temperatureNote),
    block("max-tokens", make("label", { for: limit.id }, labels.max_tokens), limitNote, limit, refused));

  // A field that the visitor is typing into keeps what is typed.
  function draw() {
    const values = panel.values();
    ticks.web.line.hidden = panel.about("web").fixed !== false; // no model here can search
    for (const [name, { input, note }] of Object.entries(ticks)) {
      input.checked = Boolean(values[name]);
      input.disabled = Boolean(panel.about(name).fixed);
      note.textContent = panel.about(name).info ?? "";
    }
    if (area.value !== (values.system_message ?? "")) area.value = values.system_message ?? "";
    const usual = panel.about("system_message").usual, { fixed = false, info: said = "" } = panel.about("temperature");
    usualPrompt.hidden = usual === undefined || area.value.trim() === usual.trim();
    if (document.activeElement !== number) number.value = values.temperature;
    scale.value = values.temperature;
    for (const control of [number, scale, usualTemperature]) control.disabled = fixed;
    temperatureNote.textContent = said;
    limitNote.textContent = panel.about("max_tokens").info ?? "";
    if (document.activeElement !== limit && limit.validity.valid) limit.value = before = `${values.max_tokens ?? ""}`;
  }
  for (const kind of ["settings:changed", "settings:shown"]) panel.element.addEventListener(kind, draw);
  draw();
}

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
