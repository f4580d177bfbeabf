// Saved prompts: a list that opens at "/" in an empty composer, and a dialog that saves, renames and deletes them. The list
// also has the prompts of MCP servers.
import { write } from "./gradio.js";
import { $, box, button, hint, language, load, make, ofAll, prompts as stored, said, when } from "./shared.js";

const MOST = 100, LONGEST = 20_000, LONGEST_NAME = 60, { read } = stored;
const keep = (prompts) => {
  try {
    ofAll.setItem(stored.KEY, JSON.stringify(prompts.toSorted((a, b) => a.name.localeCompare(b.name, language))));
    return true;
  } catch {
    return false;
  }
};
const lines = ({ name, text }) =>
  [make("b", { dir: "auto" }, name), make("span", { dir: "auto" }, text.slice(0, 200).replace(/\s+/g, " "))];
const use = ({ text }) => {
  write(box(), text);
  box().focus();
  box().setSelectionRange(text.length, text.length);
};

// The list at "/". The focus stays in the composer, which names the marked option.
const list = make("ul", { id: "prompts", role: "listbox", "aria-label": said.prompts, hidden: true });
when("#dock", (dock) => dock.append(list));
const linked = { "aria-controls": "prompts", "aria-haspopup": "listbox", "aria-autocomplete": "list" };
let found = [], at = 0, left; // the prompts in the list, the marked one, and the text at which the list was closed
const mark = (to) => {
  at = (to + found.length) % found.length;
  for (const [n, option] of [...list.children].entries()) option.setAttribute("aria-selected", n === at);
  list.children[at].scrollIntoView({ block: "nearest" });
  box().setAttribute("aria-activedescendant", list.children[at].id);
};
const close = () => {
  list.hidden = true;
  for (const name of [...Object.keys(linked), "aria-activedescendant"]) box()?.removeAttribute(name);
};
// The prompts of servers, which are asked for once, when "/" is first typed, and after a failure at the next "/".
let served = [], servers, isLost = false;
const askServers = () => (servers ??= load("servers").then(async (module) => {
  served = await module.list();
  if (served.length) {
    hint("");
    if (document.activeElement === box()) look(true);
  }
  return module;
}).catch(() => void (isLost = true)));
/** Show the list, if the text in the composer asks for it. `isLate`: it has more prompts, and the marked one stays. */
export const look = (isLate = false) => {
  const text = box().value, wanted = /^\/([^\n]*)$/.exec(text)?.[1].trim().toLowerCase();
  if (text !== left) left = undefined;
  if (isLost && (wanted === undefined || text === "/")) [servers, isLost] = [undefined, false];
  if (wanted !== undefined) askServers();
  found = wanted === undefined || left !== undefined ? [] : [...read(), ...served].filter(({ name }) => name.toLowerCase().includes(wanted));
  if (text === "/" && !found.length) hint(said.prompts_how, () => box()?.value.startsWith("/"));
  if (!found.length) return list.hidden || close();
  const to = isLate && !list.hidden ? at : 0;
  list.replaceChildren(...found.map((one, n) => make("li", { role: "option", id: `prompt-${n}` }, ...lines(one))));
  list.hidden = false;
  for (const [name, value] of Object.entries(linked)) box().setAttribute(name, value);
  mark(to);
};
const pick = (n) => {
  const one = found[n];
  close();
  if (one.server) servers.then((module) => module.use(one, use));
  else use(one);
};
/** A key was pressed. The list hears it before all others, because it sends nothing then, and stops no answer. */
export const press = (event) => {
  if (list.hidden || event.target !== box()) return;
  const to = { ArrowDown: at + 1, ArrowUp: at - 1 }[event.key];
  if (to !== undefined) mark(to);
  else if (event.key === "Enter" && !event.shiftKey) pick(at);
  else if (event.key === "Escape") {
    left = box().value;
    close();
  } else return;
  event.preventDefault();
  event.stopImmediatePropagation();
};
list.addEventListener("mousedown", (event) => event.preventDefault()); // the focus stays
list.addEventListener("click", ({ target }) => {
  const n = [...list.children].indexOf(target.closest("li"));
  if (n >= 0) pick(n);
});

// The dialog
const name = make("input", { maxlength: LONGEST_NAME, dir: "auto", autocomplete: "off", required: true });
const form = make("form", {}, make("label", {}, make("span", {}, said.prompt_name), name), make("button", { class: "save" }, said.prompt_save));
const state = make("p", { role: "status" }), rows = make("ul", { role: "list", "aria-labelledby": "prompt-book-title" });
const end = button("close", said.close);
const dialog = make("dialog", { id: "prompt-book", "aria-labelledby": "prompt-book-title" },
  make("h2", { id: "prompt-book-title" }, said.prompts), form, state, rows, make("div", { class: "actions" }, end));
document.body.append(dialog);
const say = (text, ...more) => state.replaceChildren(text, ...more);
const store = (prompts) => keep(prompts) || void say(said.prompt_no_room);
const isTaken = (wanted, but) => read().some((one) => one.name !== but && one.name.toLowerCase() === wanted.toLowerCase());
const row = (one) => {
  const pickIt = make("button", { type: "button", class: "use" }, ...lines(one));
  const rename = button("rename", said.chats_rename), drop = button("delete", said.chats_delete);
  rename.setAttribute("aria-label", said.prompt_rename.replace("{name}", () => one.name));
  drop.setAttribute("aria-label", said.prompt_delete.replace("{name}", () => one.name));
  const made = make("li", {}, pickIt, rename, drop);
  pickIt.addEventListener("click", () => {
    dialog.close();
    use(one);
  });
  rename.addEventListener("click", () => edit(made, one));
  drop.addEventListener("click", () => {
    const before = read();
    if (!store(before.filter((other) => other.name !== one.name))) return;
    draw();
    const undo = button("undo", said.chats_undo);
    undo.addEventListener("click", () => {
      if (!store([...read().filter((other) => other.name !== one.name), one])) return;
      say("");
      draw(one.name);
    });
    say(said.prompt_deleted, undo);
    undo.focus();
  });
  return made;
};
const edit = (made, one) => {
  const input = make("input", { "aria-label": said.prompt_name, maxlength: LONGEST_NAME, dir: "auto" });
  input.value = one.name;
  made.firstChild.replaceWith(input);
  input.select();
  let over = false;
  const finish = (save) => {
    if (over) return;
    over = true;
    const wanted = input.value.trim(), isNew = save && wanted && wanted !== one.name;
    if (isNew && isTaken(wanted, one.name)) say(said.prompt_taken);
    else if (isNew && store(read().map((other) => (other.name === one.name ? { ...one, name: wanted } : other)))) {
      say("");
      return draw(wanted);
    }
    draw(one.name);
  };
  input.addEventListener("blur", () => finish(true));
  input.addEventListener("keydown", (event) => {
    if (!["Enter", "Escape"].includes(event.key)) return;
    event.preventDefault(); // Escape would close the dialog
    event.stopPropagation();
    finish(event.key === "Enter");
  });
};
// Shows the prompts. The focus comes to the one with this name.
const draw = (focused) => {
  const prompts = read();
  rows.replaceChildren(...prompts.map(row));
  form.hidden = !box().value.trim();
  if (focused !== undefined) $(".rename", rows.children[prompts.findIndex((one) => one.name === focused)])?.focus();
  stored.offer();
};
form.addEventListener("submit", (event) => {
  event.preventDefault();
  const wanted = name.value.trim(), text = box().value;
  if (!wanted) return;
  if (text.length > LONGEST) return say(said.prompt_long);
  if (read().length >= MOST) return say(said.prompt_full);
  if (isTaken(wanted)) return say(said.prompt_taken);
  if (!store([...read(), { name: wanted, text }])) return;
  say(said.prompt_saved);
  name.value = "";
  draw();
  name.focus();
});
end.addEventListener("click", () => dialog.close());
dialog.addEventListener("close", () => box()?.focus());
/** Open the dialog. */
export const open = () => {
  say("");
  name.value = "";
  draw();
  dialog.showModal();
  (form.hidden ? $(".use", rows) ?? end : name).focus();
};
document.addEventListener("focusout", ({ target }) => target === box() && !list.hidden && close());
