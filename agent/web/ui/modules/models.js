// The list of models: a dialog with a search field. The server says which models there are each time it is opened.
// page.js opens it and gets the choice. For a new version of an answer, it offers the other models that can be used.
import { answer, call } from "./gradio.js";
import { $, hint, load, make, said } from "./shared.js";

const ABILITIES = ["image", "audio", "video", "tools", "reasoning"], ROOM = 480, ENOUGH = 320, PAGE = 8;
const search = make("input", { type: "text", role: "combobox", "aria-label": said.models_search, "aria-controls": "model-list",
  "aria-expanded": "true", "aria-autocomplete": "list", autocomplete: "off", autocapitalize: "off",
  spellcheck: false, maxlength: "300", enterkeyhint: "go" });
const list = make("div", { id: "model-list", role: "listbox", "aria-label": said.models });
const state = make("p", { role: "status" });
const end = make("button", { type: "button", class: "close", "aria-label": said.close, title: said.close, tabindex: "-1" });
const dialog = make("dialog", { id: "models", "aria-label": said.models, tabindex: "-1" }, make("div", { class: "head" }, search, end), state, list);
let use, isOther, except = []; // what to do with a choice, whether it is not for the composer, and what is not offered
let all = [], options = [], marked, chosen = "", opener, early = false; // `early`: Enter came before the list

const plain = (text) => text.toLowerCase().replace(/\s+/g, " ").trim();
const row = (entry) => {
  const badges = [said[`place_${entry.place}`], ...ABILITIES.filter((one) => entry[one]).map((one) => said[`ability_${one}`])];
  const about = [entry.source, entry.missing].filter(Boolean);
  const isChosen = entry.id === chosen;
  const facts = [...about.map((one) => make("span", {}, one)), ...badges.map((one, n) => make("i", { class: n ? "ability" : "place" }, one))];
  const option = make("div", { role: "option", id: `model-${options.length}`, "aria-selected": isChosen },
    make("b", { dir: "auto" }, entry.label),
    make("span", {}, ...facts));
  const short = entry.id.slice(entry.id.indexOf(":") + 1);
  options.push({ option, entry, names: [entry.label, [entry.label, entry.missing].filter(Boolean).join(" · "), entry.id, short].map(plain),
    text: plain([entry.label, entry.id, ...about, ...badges].join(" ")) });
  return option;
};
// The models that need the same, for example a key. Those that need nothing come first.
const groups = (some) => [...new Set(some.map(({ missing }) => missing))].sort().map((needed, at) => {
  const head = make("p", { id: `models-group-${at}`, role: "presentation" }, needed || said.models_ready);
  return make("div", { role: "group", "aria-labelledby": head.id }, head, ...some.filter(({ missing }) => missing === needed).map(row));
});
const own = { option: make("div", { role: "option", id: "model-own", class: "own", "aria-selected": "false", hidden: true }) };
const beside = { option: make("div", { role: "option", id: "model-beside", class: "own", "aria-selected": "false" }, said.compare_with), entry: {} };
const shown = () => [...options, own, beside].filter(({ option }) => !option.hidden);
const mark = (one) => {
  marked?.option.classList.remove("marked");
  marked = one;
  if (one) {
    one.option.classList.add("marked");
    search.setAttribute("aria-activedescendant", one.option.id);
    one.option.scrollIntoView({ block: "nearest" });
  } else search.removeAttribute("aria-activedescendant");
};
const filter = () => {
  const typed = plain(search.value), words = typed.split(" ").filter(Boolean);
  for (const { option, text } of options) option.hidden = !words.every((word) => text.includes(word));
  for (const part of list.querySelectorAll("[role=group]")) part.hidden = !part.querySelector("[role=option]:not([hidden])");
  const hits = options.filter(({ option }) => !option.hidden);
  const exact = options.find(({ names }) => names.includes(typed));
  own.option.hidden = !typed || !all.length || Boolean(exact) || (hits.length > 0 && !/[:/]/.test(typed));
  own.entry = { id: search.value.trim(), label: search.value.trim() };
  own.option.textContent = said.models_own.replace("{name}", () => own.entry.label);
  beside.option.hidden = isOther || Boolean(typed) || !all.some(({ id, missing }) => id !== chosen && !missing) || Boolean($("#compare .more[hidden]"));
  if (all.length) state.textContent = hits.length ? "" : said.models_none;
  list.scrollTop = 0;
  mark(typed ? exact ?? hits[0] ?? (own.option.hidden ? undefined : own) : options.find(({ entry }) => entry.id === chosen));
};
const draw = () => {
  options = [];
  const some = isOther ? all.filter(({ id, missing }) => id !== chosen && !missing && !except.includes(id)) : all;
  list.replaceChildren(...(some.some(({ missing }) => missing !== some[0].missing) ? groups(some) : some.map(row)), own.option, beside.option);
  filter();
};
const choose = (one) => {
  dialog.close();
  if (one === beside) load("compare").then(({ add }) => add(opener), () => hint(said.chats_failed));
  else if (isOther || one.entry.id !== chosen) use(one.entry.id, one.entry.label);
};
answer("models", (/** @type {any} */ { models } = {}) => {
  if (!models) return void (all.length || (state.textContent = said.chats_failed));
  const before = marked?.entry?.id, same = JSON.stringify(models) === JSON.stringify(all);
  all = models;
  if (!dialog.open || (same && !early)) return; // a row that is pressed just now stays the same element
  draw();
  const again = !early && before && shown().find(({ entry }) => entry.id === before);
  if (again) mark(again); // the visitor may have moved on in the list that was there
  if (early && marked) choose(marked);
  early = false;
});

const move = (by) => {
  const rows = shown(), at = rows.indexOf(marked);
  const next = Math.abs(by) > 1 ? Math.max(0, Math.min(rows.length - 1, at + by)) : (at + by + rows.length) % rows.length;
  if (rows.length) mark(rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : next]);
};
const STEPS = { ArrowDown: 1, ArrowUp: -1, PageDown: PAGE, PageUp: -PAGE };
dialog.addEventListener("keydown", (event) => {
  if (STEPS[event.key]) move(STEPS[event.key]);
  else if (event.key === "Enter" && event.target !== end) {
    if (!all.length) early = true;
    else if (marked) choose(marked);
  } else {
    if (event.key === "Tab") dialog.close(); // and the browser goes on from the button
    else if (event.key.length === 1 && event.target !== end) search.focus();
    return;
  }
  event.preventDefault();
});
search.addEventListener("input", () => {
  early = false;
  filter();
});
list.addEventListener("mousedown", (event) => event.preventDefault()); // the focus stays in the search field
list.addEventListener("click", ({ target }) => {
  const option = target.closest("[role=option]");
  const one = shown().find((each) => each.option === option);
  if (one) choose(one);
});
end.addEventListener("click", () => dialog.close());
let pressed;
dialog.addEventListener("pointerdown", ({ target }) => (pressed = target));
dialog.addEventListener("click", ({ target }) => target === dialog && pressed === dialog && dialog.close());
dialog.addEventListener("close", () => {
  if (dialog.open) return; // it was opened again before this event
  opener.setAttribute("aria-expanded", "false");
  dialog.remove();
});

// Beside the button, where there is more room; on a narrow screen at the top, above a keyboard on the screen.
const narrow = matchMedia("(max-width: 640px)"), view = window.visualViewport;
const fit = () => {
  if (!dialog.open) return;
  const { top, left, right, bottom } = opener.getBoundingClientRect(), width = Math.min(460, innerWidth - 32);
  const below = innerHeight - bottom - 16, above = top - 16, down = below >= Math.min(ENOUGH, above);
  const height = Math.min(ROOM, down ? below : above);
  const side = left < innerWidth / 2 ? Math.min(left, innerWidth - width - 16) : right - width;
  const place = down ? `${bottom + 8}px auto auto` : `auto auto ${innerHeight - top + 8}px`;
  Object.assign(dialog.style, narrow.matches
    ? { inset: "8px 8px auto", width: "auto", maxHeight: "none", height: `${(view?.height ?? innerHeight) - 16}px` }
    : { inset: `${place} ${Math.max(16, side)}px`, width: `${width}px`, height: isOther ? "auto" : `${height}px`, maxHeight: `${height}px` });
};
for (const target of [window, view]) target?.addEventListener("resize", fit);
/** Open the list at this button. `act` gets the choice, which is not for the composer if the button is not there, or with a title. */
export function open(button, id, act, { title = "", except: left = [] } = {}) {
  if (dialog.open || $("dialog[open]")) return;
  opener?.setAttribute("aria-expanded", "false");
  [opener, chosen, use, early, search.value] = [button, id ?? "", act, false, ""];
  [isOther, except] = [Boolean(title) || !button.matches("#composer *"), left];
  dialog.setAttribute("aria-label", title || (isOther ? said.retry_with : said.models));
  opener.setAttribute("aria-expanded", "true");
  search.placeholder = narrow.matches ? said.models_search : said.models_how; // the longer one would be cut
  document.body.append(dialog);
  dialog.showModal();
  fit();
  if (matchMedia("(pointer: coarse)").matches) dialog.focus(); // else the keyboard covers half of the list
  else search.focus();
  state.textContent = all.length ? "" : said.models_loading;
  draw();
  call("models");
};
