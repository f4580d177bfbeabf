// Folders of chats in the list, loaded when the visitor has one or wants one: their sections, the dialog that moves a chat,
// the one for a folder's name, instructions and model, and the mark of a new chat that begins in a folder.
import { act, draw, go, item, list, place, refresh, rows, tellTabs } from "./chats.js";
import { ask, inTurn, request } from "./network.js";
import { $, box, button, hint, make, ofAll, said, shown, when } from "./shared.js";

const KEY = "folders", NAME = "60", MOST_INSTRUCTIONS = "4000";
/** @type {any[]} */
let all = [];
/** @type {Record<string, string>} */
let texts = {};
/** @type {Map<string, any[]>} The chats of open folders that can be further down in the list than it was read. */
const far = new Map();
let isCut = false; // the list was not read to its end, so that it can lack chats of closed folders
const parts = new Map(); // the sections by folder, which keep the focus when the list changes
const opened = () => {
  try {
    return JSON.parse(ofAll?.getItem(KEY) ?? "[]");
  } catch {
    return [];
  }
};
const open = new Set(opened());
const keepOpen = () => {
  if (all.length) ofAll?.setItem(KEY, JSON.stringify([...open].filter(has)));
  else ofAll?.removeItem(KEY); // the next visit loads nothing of this
};
const named = (text, folder) => text.replace("{name}", () => folder.name);

/** Whether there is this folder. */
export const has = (id) => Boolean(id) && all.some((one) => one.id === id);
export const isRead = () => Boolean(texts.of);
/** A chat of a folder that the list has not read. */
export const find = (id) => [...far.values()].flat().find((one) => one.id === id);
export const drop = (id) => far.forEach((found, folder) => far.set(folder, found.filter((one) => one.id !== id)));
export const update = (row) => row && far.forEach((found, folder) => far.set(folder, found.map((one) => (one.id === row.id ? { ...one, ...row } : one))));
/** Read the folders. Without a network they stay as they are. */
export async function read() {
  const found = await request("/folders").catch(() => undefined);
  if (!found) return;
  [all, texts] = [found.folders, found.said];
  if (shown.into && !has(shown.into.folder)) leave();
  keepOpen();
  draw();
}
/** Read the chats of the open folders that the list does not have, if it was not read to its end. */
export async function more(isPart) {
  isCut = isPart;
  if (!isPart) return far.clear();
  const ids = all.map(({ id }) => id).filter((id) => open.has(id));
  const found = ids.length && await ask(`?${ids.map((id) => `folder=${id}`).join("&")}`).catch(() => undefined); // one request counts once
  if (found) for (const id of ids) far.set(id, found.conversations.filter((one) => one.folder === id));
  draw();
}
const chatsOf = ({ id }) => {
  const near = [...rows.values()].filter((row) => row.folder === id), known = new Set(rows.keys());
  return [...near, ...(far.get(id) ?? []).filter((row) => !known.has(row.id))];
};
const sectionOf = (folder) => {
  const known = parts.get(folder.id);
  if (known) return known;
  const section = make("section", { class: "folder" });
  const fold = button("fold", "", () => toggle(folder.id)), begin = button("begin", ""), options = button("options", "");
  begin.addEventListener("click", () => beginIn(folder.id));
  options.addEventListener("click", () => edit(folder.id));
  fold.append(make("span", { dir: "auto" }), make("small"));
  section.append(make("h2", {}, fold), begin, options, make("ul", { role: "list" }), make("p", { class: "empty" }));
  parts.set(folder.id, section);
  return section;
};
/** The sections of the folders. The chats that they show are added to `used`. */
export const sections = (used) => all.map((folder) => {
  const section = sectionOf(folder), isOpen = open.has(folder.id), chats = chatsOf(folder);
  const items = isOpen ? chats.map((row) => item(row, false)) : [];
  for (const one of items) used.add(one);
  section.setAttribute("aria-label", folder.name);
  $(".fold", section).setAttribute("aria-expanded", String(isOpen));
  $(".fold span", section).textContent = folder.name;
  $(".fold small", section).textContent = chats.length && (!isCut || (isOpen && far.has(folder.id))) ? String(chats.length) : "";
  for (const [name, text] of [["begin", texts.into], ["options", texts.about]]) {
    const control = $(`.${name}`, section);
    control.title = named(text, folder);
    control.setAttribute("aria-label", control.title);
  }
  place($("ul", section), items);
  $(".empty", section).textContent = isOpen && !chats.length ? texts.empty : "";
  return section;
});
const toggle = (id) => {
  if (!open.delete(id)) open.add(id);
  keepOpen();
  draw();
  if (open.has(id)) refresh();
};
const folderOf = (id) => all.find((one) => one.id === id);

// The dialogs
const title = make("h2", { id: "folder-title", dir: "auto" }), body = make("div"), state = make("p", { role: "status" });
const dialog = make("dialog", { id: "folder", "aria-labelledby": "folder-title" }, title, body);
document.body.append(dialog);
body.addEventListener("input", () => (state.textContent = ""));
const show = (text, ...children) => {
  title.textContent = text;
  state.textContent = "";
  body.replaceChildren(...children);
  dialog.showModal();
};
let asking = /** @type {ChildNode | null} */ (null); // what the dialog shows while it waits for the server
/** Ask the server, and say in the dialog what went wrong. A second press asks nothing. */
const say = async (path, how) => {
  const mine = body.firstChild;
  if (asking === mine) return undefined;
  asking = mine;
  try {
    const value = await inTurn(false, () => request(`/folders${path}`, how));
    await read();
    tellTabs();
    return value;
  } catch (error) {
    state.textContent = error.status ? error.message : said.chats_failed;
    if (error.status === 404) read(); // it was deleted in another tab
    return undefined;
  } finally {
    if (asking === mine) asking = null;
  }
};
const put = async (row, id) => {
  dialog.close();
  if (id) open.add(id);
  keepOpen();
  if (await act(`/${row.id}`, { method: "PATCH", body: { folder: id } })) await refresh();
  /** @type {HTMLElement | null} */ ($(`li[data-id="${row.id}"] a`, list))?.focus();
};
/** Let the visitor put a chat into a folder. @param {any} row */
export function move(row) {
  const here = has(row.folder) ? row.folder : "";
  const choice = (id, name) => {
    const one = button(id ? "choice" : "choice none", "", () => put(row, id));
    one.append(make("span", { dir: "auto" }, name));
    if (id === here) one.setAttribute("aria-current", "true");
    return make("li", {}, one);
  };
  const name = make("input", { "aria-label": texts.new, placeholder: texts.new, maxlength: NAME, dir: "auto", autocomplete: "off" });
  const form = make("form", {}, name, make("button", { class: "keep" }, texts.create));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!name.value.trim()) return name.focus();
    const made = await say("", { method: "POST", body: { name: name.value } });
    if (made) await put(row, made.id);
  });
  const close = button("close", said.close, () => dialog.close());
  const choices = all.length ? [make("ul", { role: "list" }, choice("", texts.none), ...all.map((one) => choice(one.id, one.name)))] : [];
  show(texts.of, ...choices, form, state, make("div", { class: "actions" }, close));
  /** @type {HTMLElement} */ ($("[aria-current]", body) ?? name).focus();
}
/** @type {Map<string, string[]>} What was changed of a folder and is not stored, until the page is left. */
const drafts = new Map();
document.addEventListener("own-data-deleted", () => drafts.clear());
/** Let the visitor change a folder. What was written is there again when the dialog is opened again. */
const edit = (id) => {
  const folder = folderOf(id);
  if (!folder) return;
  const name = make("input", { maxlength: NAME, dir: "auto", autocomplete: "off" });
  const text = make("textarea", { maxLength: MOST_INSTRUCTIONS, dir: "auto", "aria-describedby": "folder-how" });
  const models = new Map([["", texts.any_model]]);
  if (folder.model) models.set(folder.model, folder.model_name);
  if (shown.model) models.set(shown.model, $("#model-button").textContent);
  const model = make("select", {}, ...[...models].map(([value, label]) => make("option", { value }, label)));
  const fields = [name, text, model], undo = button("undo", said.chats_undo);
  const fill = (values) => {
    fields.forEach((field, n) => (field.value = values[n]));
    undo.hidden = !drafts.has(id);
  };
  const stored = (one = folderOf(id) ?? folder) => [one.name, one.instructions, one.model];
  fill(drafts.get(id) ?? stored());
  undo.addEventListener("click", () => {
    drafts.delete(id);
    fill(stored());
    name.focus();
  });
  const field = (label, ...children) => make("label", {}, make("span", {}, label), ...children);
  const bin = button("delete", texts.delete), cancel = button("cancel", said.camera_cancel, () => dialog.close());
  const form = make("form", {}, field(texts.name, name), field(texts.instructions, text), make("p", { id: "folder-how" }, texts.instructions_how),
    field(texts.model, model), state, make("div", { class: "actions" }, bin, undo, cancel, make("button", { class: "keep" }, texts.save)));
  form.addEventListener("input", () => drafts.set(id, fields.map(({ value }) => value)));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const values = fields.map(({ value }) => value), [called, instructions, wanted] = values;
    if (!(await say(`/${id}`, { method: "PATCH", body: { name: called, instructions, model: wanted } }))) return;
    if (drafts.get(id)?.some((value, n) => value !== values[n])) return; // more was written meanwhile
    drafts.delete(id);
    if (form.isConnected) dialog.close();
  });
  let isSure = false;
  bin.addEventListener("keydown", (event) => event.repeat && event.preventDefault());
  bin.addEventListener("click", async ({ detail: presses }) => {
    if (presses > 1) return; // a double click must not confirm what it asks
    if (!isSure) return void ([isSure, state.textContent] = [true, texts.delete_how]);
    if (!(await say(`/${id}`, { method: "DELETE" }))) return;
    if (form.isConnected) dialog.close();
    drafts.delete(id);
    parts.delete(id);
    far.delete(id);
    refresh();
  });
  show(texts.title, form);
  name.focus();
};

// A new chat in a folder. Its first message names the folder.
const mark = make("p", { id: "into", role: "status" });
when("#chat", (chat) => chat.before(mark));
const leave = () => {
  shown.into = undefined;
  mark.textContent = "";
};
const beginIn = (id) => {
  const folder = folderOf(id);
  if (!folder || !go("")) return;
  shown.into = { folder: id };
  mark.textContent = named(texts.into, folder);
  if (folder.model && folder.model !== shown.model) document.dispatchEvent(new CustomEvent("model-wanted", { detail: { id: folder.model, label: folder.model_name } }));
  box()?.focus();
};
document.addEventListener("chat-opening", leave);
document.addEventListener("chat-view", (/** @type {any} */ { detail }) => detail.conversation && leave());
document.addEventListener("message-refused", () => shown.into && read()); // the folder can be gone
dialog.addEventListener("close", () => dialog.open || body.replaceChildren());
