// Saved prompts: a list that opens at "/" in an empty composer, and a dialog that saves, renames and deletes them. The list
// also has the prompts of MCP servers.
import { write } from "./gradio.js";
import { request } from "./network.js";
import { $, box, button, hint, language, make, ofAll, prompts as stored, said, when } from "./shared.js";

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
let served = [], asked, isLost = false;
const askServers = () => (asked ??= request("/prompts").then((found) => {
  served = found.map((one) => ({ ...one, text: `${one.server} · ${one.description}` }));
  if (!served.length) return;
  hint("");
  if (document.activeElement === box()) look(true);
}).catch(() => void (isLost = true)));
/** Show the list, if the text in the composer asks for it. `isLate`: it has more prompts, and the marked one stays. */
export const look = (isLate = false) => {
  const text = box().value, wanted = /^\/([^\n]*)$/.exec(text)?.[1].trim().toLowerCase();
  if (text !== left) left = undefined;
  if (isLost && (wanted === undefined || text === "/")) [asked, isLost] = [undefined, false];
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
  if (one.server) useOfServer(one);
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

// The dialog for the arguments of a server's prompt. Its text fills the composer and is never sent by itself. It takes the
// place of what was typed to find it alone, and comes to nothing when the dialog was closed, another prompt was picked or
// another chat opened meanwhile.
const problem = make("p", { role: "status" }), fields = make("div", { class: "fields" });
const fill = make("button", { class: "fill" }, said.prompt_fill), cancel = button("cancel", said.camera_cancel);
const asking = make("form", {}, fields, problem, make("div", { class: "actions" }, cancel, fill));
const wants = make("dialog", { id: "server-prompt", "aria-labelledby": "server-prompt-title" }, make("h2", { id: "server-prompt-title", dir: "auto" }), asking);
let wish = 0, done = (/** @type {Record<string, string> | undefined} */ _values) => undefined;

/** Fill the composer with a prompt of a server, after its arguments were asked for. */
export const useOfServer = async ({ server, name, arguments: wanted }) => {
  const mine = ++wish, held = box().value;
  const get = (values) => request("/prompts", { method: "POST", body: { server, name, arguments: values } });
  const put = ({ text }) => {
    const typed = box().value, rest = typed.startsWith(held) ? typed.slice(held.length) : typed;
    use({ text: rest.trim() ? `${text}\n\n${rest.trimStart()}` : text });
  };
  if (!wanted.length) return get({}).then((got) => mine === wish && put(got), (error) => mine === wish && hint(error.message));
  $("h2", wants).textContent = name;
  fields.replaceChildren(...wanted.map(({ name, description, required }) => {
    const input = make("input", { name, dir: "auto", autocomplete: "off" });
    input.required = required;
    return make("label", {}, make("span", { dir: "auto" }, name), input, ...(description ? [make("small", { dir: "auto" }, description)] : []));
  }));
  problem.textContent = "";
  fill.disabled = false;
  document.body.append(wants);
  wants.showModal();
  done = async (values) => {
    fill.disabled = true;
    problem.textContent = "";
    const got = await get(values).catch(({ message }) => ({ message }));
    if (mine !== wish || !wants.open) return;
    fill.disabled = false;
    if ("message" in got) return void (problem.textContent = got.message);
    wants.close();
    put(got);
  };
};
asking.addEventListener("submit", (event) => {
  event.preventDefault();
  const given = [...fields.querySelectorAll("input")].filter(({ value }) => value.trim());
  done(Object.fromEntries(given.map(({ name, value }) => [name, value])));
});
cancel.addEventListener("click", () => wants.close());
wants.addEventListener("close", () => wants.open || wants.remove());
document.addEventListener("chat-opening", () => {
  wish += 1;
  wants.close();
});
