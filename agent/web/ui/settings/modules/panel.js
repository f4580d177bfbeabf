// The settings: a side bar with the browser's own controls. It shows what the server says, and tells what the visitor sets.
import { make } from "../../transcript/modules/elements.js";

const HIGHEST = 2, STEP = 0.05, MOST_TOKENS = 10_000_000;

/**
 * What is said of a setting: a sentence, whether the model fixes it, its usual value, and the most that the model takes.
 * @typedef {{info?: string, fixed?: boolean, usual?: any, most?: number}} About
 */

/**
 * Draw the settings. Their events are `settings:changed` (the visitor has set `name` to `value`; `isTyped`: and goes on typing),
 * `settings:shown` (they show other values or facts), and `settings:toggled` (they were opened or closed).
 * @param {{labels: Record<string, string>, language: string}} options
 */
export function mount({ labels, language }) {
  let values = /** @type {Record<string, any>} */ ({}), about = /** @type {Record<string, About>} */ ({});
  let isOpen = false;
  const fire = (/** @type {string} */ name, /** @type {any} */ detail = {}) =>
    element.dispatchEvent(new CustomEvent(`settings:${name}`, { detail, bubbles: true }));
  const set = (/** @type {string} */ name, /** @type {any} */ value, isTyped = false) => {
    values = { ...values, [name]: value };
    draw();
    fire("changed", { name, value, isTyped });
  };
  const block = (/** @type {string} */ id, /** @type {Node[]} */ ...children) => make("div", { id, className: "setting" }, ...children);
  const info = (/** @type {string} */ id) => make("p", { id: `${id}-info`, className: "info" });
  const reset = () => make("button", { type: "button", className: "reset", title: labels.reset, "aria-label": labels.reset }, "↺");

  // Reasoning, tools, the web, and the extraction of text
  const ticks = Object.fromEntries([["reasoning", "reasoning"], ["tools", "tools"], ["web", "web"], ["extract_text", "extract-text"]].map(([name, id]) => {
    const input = make("input", { type: "checkbox", "aria-describedby": `${id}-info` }), note = info(id);
    input.addEventListener("change", () => set(name, input.checked));
    return [name, { input, note, block: block(id, make("label", { className: "tick" }, input, make("span", {}, labels[name])), note) }];
  }));
  ticks.extract_text.note.setAttribute("role", "status"); // the switch above it can change what it says

  // The system prompt
  const area = make("textarea", { id: "system-text", rows: 3, placeholder: labels.system_how });
  const usualPrompt = reset();
  let isWritten = false; // the visitor writes in the field, so that what the server says of it comes too late
  area.addEventListener("input", () => {
    isWritten = true;
    set("system_message", area.value, true);
  });
  area.addEventListener("blur", () => (isWritten = false));
  area.addEventListener("change", () => set("system_message", area.value));
  usualPrompt.addEventListener("click", () => {
    const text = about.system_message?.usual ?? "";
    area.focus();
    area.select();
    // As if it were typed, so that it can be undone.
    if (!document.execCommand(text ? "insertText" : "delete", false, text)) area.value = text;
    set("system_message", area.value);
  });

  // The temperature, as a number and on a scale. What cannot be used becomes the nearest one of the scale when the visitor
  // leaves the field. Its decimal mark is the browser's choice: Firefox goes by the `lang` of the page, Chromium by its own
  // language. A field of plain text would lose the arrow keys and the keyboard for numbers.
  const limits = { min: "0", max: `${HIGHEST}`, step: `${STEP}` };
  const number = make("input", { type: "number", id: "temperature-number", "aria-describedby": "temperature-info", ...limits });
  const scale = make("input", { type: "range", "aria-label": labels.temperature, ...limits });
  const usualTemperature = reset(), temperatureNote = info("temperature");
  const inside = (/** @type {number} */ value) => Math.min(Math.max(value, 0), HIGHEST);
  const warm = (/** @type {any} */ field, /** @type {boolean} */ isTyped) => {
    if (field.value !== "") set("temperature", inside(field.valueAsNumber), isTyped);
  };
  for (const field of [number, scale]) field.addEventListener("input", () => warm(field, true));
  scale.addEventListener("change", () => warm(scale, false));
  const leaveTemperature = () => {
    const nearest = Number((Math.round(values.temperature / STEP) * STEP).toFixed(2));
    number.value = nearest;
    if (nearest !== values.temperature) set("temperature", nearest);
  };
  usualTemperature.addEventListener("click", () => set("temperature", about.temperature?.usual ?? values.temperature));

  // The limit of an answer. What cannot be one is put back when the visitor leaves the field, and the page says so.
  const limit = make("input", { type: "number", id: "max-tokens-number", min: "1", placeholder: labels.no_limit, "aria-describedby": "max-tokens-info" });
  const limitNote = info("max-tokens"), refused = make("p", { className: "refused", role: "alert" });
  let before = ""; // the last limit that can be used
  const most = () => about.max_tokens?.most ?? MOST_TOKENS;
  const limitOf = (/** @type {string} */ text) => (text === "" ? null : Math.min(Number(text), most()));
  limit.addEventListener("input", () => {
    refused.replaceChildren();
    if (limit.validity.valid) set("max_tokens", limitOf(limit.value), true);
  });
  const leaveLimit = () => {
    if (!limit.validity.valid) {
      limit.value = before;
      refused.textContent = labels.refused;
    } else if (Number(limit.value) > most()) {
      limit.value = most();
      refused.textContent = labels.lowered.replace("{count}", most().toLocaleString(language));
    }
    if (limit.value !== before) set("max_tokens", limitOf(before = limit.value));
    else if (limitOf(before) !== values.max_tokens) set("max_tokens", limitOf(before));
  };
  // A window that loses the focus brings no change, and Enter need not. A field that was only passed through changes nothing.
  for (const [field, leave] of /** @type {const} */ ([[number, leaveTemperature], [limit, leaveLimit]])) {
    let isTouched = false;
    const left = () => {
      isTouched ? leave() : draw();
      isTouched = false;
    };
    field.addEventListener("input", () => (isTouched = true));
    for (const kind of ["change", "blur"]) field.addEventListener(kind, left);
    field.addEventListener("keydown", (/** @type {KeyboardEvent} */ { key }) => key === "Enter" && left());
  }

  const content = make("div", { className: "content" },
    make("h2", {}, labels.settings), make("p", {}, labels.hold),
    block("system", make("label", { htmlFor: area.id }, labels.system_message), area, usualPrompt),
    ticks.reasoning.block, ticks.tools.block, ticks.web.block, ticks.extract_text.block,
    block("temperature",
      make("div", { className: "head" }, make("label", { htmlFor: number.id }, make("span", {}, labels.temperature)), make("span", { className: "number" }, number, usualTemperature)),
      make("div", { className: "scale" }, make("span", { className: "min" }, "0"), scale, make("span", { className: "max" }, `${HIGHEST}`)), temperatureNote),
    block("max-tokens", make("label", { htmlFor: limit.id }, labels.max_tokens), limitNote, limit, refused));
  const toggle = make("button", { type: "button", className: "toggle", title: labels.toggle, "aria-label": labels.toggle, "aria-expanded": "false" });
  const element = make("aside", { className: "settings", "aria-label": labels.settings }, toggle, content);
  const open = (/** @type {boolean} */ is) => {
    isOpen = is;
    toggle.setAttribute("aria-expanded", `${is}`);
    element.classList.toggle("open", is);
    fire("toggled");
  };
  toggle.addEventListener("click", () => open(!isOpen));

  // A field that the visitor is typing into keeps what is typed.
  function draw() {
    ticks.web.block.hidden = about.web?.fixed !== false; // no model here can search
    for (const [name, { input, note }] of Object.entries(ticks)) {
      input.checked = Boolean(values[name]);
      input.disabled = Boolean(about[name]?.fixed);
      note.textContent = about[name]?.info ?? "";
    }
    if (area.value !== (values.system_message ?? "")) area.value = values.system_message ?? "";
    const usual = about.system_message?.usual, { fixed = false, info: said = "" } = about.temperature ?? {};
    usualPrompt.hidden = usual === undefined || area.value.trim() === usual.trim();
    if (document.activeElement !== number) number.value = values.temperature;
    scale.value = values.temperature;
    for (const control of [number, scale, usualTemperature]) control.disabled = fixed;
    temperatureNote.textContent = said;
    limitNote.textContent = about.max_tokens?.info ?? "";
    if (document.activeElement !== limit && limit.validity.valid) limit.value = before = `${values.max_tokens ?? ""}`;
  }

  return {
    element, toggle, content, open,
    isOpen: () => isOpen,
    /** What is set. The system prompt is missing until the server has named it. */
    values: () => values,
    /** What is said of a setting. @param {string} name @returns {About} */
    about: (name) => about[name] ?? {},
    /** Show what the server says. What it leaves out stays. @param {any} given */
    show: ({ about: facts = {}, ...given }) => {
      const written = isWritten && { system_message: values.system_message };
      [values, about] = [{ ...values, ...given, ...written }, { ...about, ...facts }];
      draw();
      fire("shown");
    },
    /** All that is shown, in the form of `show`. */
    value: () => ({ ...values, about }),
  };
}
