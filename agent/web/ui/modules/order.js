// What brings order into a chat, loaded when it is used: erasing a message, the tree of its versions, and a search in it.
import { addressOf, ask, request } from "./network.js";
import { $, box, button, hint, make, said, shown, when } from "./shared.js";

const TYPED_MS = 250, MOST_PAGES = 10;
const title = make("h2", { id: "order-title" }), body = make("div");
const dialog = make("dialog", { id: "order", "aria-labelledby": "order-title" }, title, body);
document.body.append(dialog);
const showDialog = (text, ...children) => {
  title.textContent = text;
  body.replaceChildren(...children);
  dialog.showModal();
};
const sentenceOf = (error) => (error.status ? error.message : said.chats_failed);
const refused = (error) => hint(sentenceOf(error));
/** Say a failure where the dialog shows it, or on the page if the dialog was closed meanwhile. */
const tellIn = (state) => (error) => (state.isConnected && dialog.open ? (state.textContent = sentenceOf(error)) : refused(error));
const seek = (place, words) => document.dispatchEvent(new CustomEvent("message-sought", { detail: { conversation: shown.conversation, words, ...place } }));

/** Ask whether this turn is to be erased with all that follows it. `act` does so. @param {any} turn @param {() => Promise<unknown>} act */
export function erase(turn, act) {
  const isVersion = Boolean(turn.question_versions || turn.answer_versions);
  const cancel = button("cancel", said.camera_cancel), sure = button("delete", said.chats_delete);
  cancel.addEventListener("click", () => dialog.close());
  sure.addEventListener("click", async () => {
    dialog.close();
    if (await act()) box()?.focus();
  });
  showDialog(isVersion ? said.erase_version : said.erase, make("p", {}, isVersion ? said.erase_version_how : said.erase_how),
    make("div", { class: "actions" }, cancel, sure));
}

/** @type {Map<string, string>} What was written and is not stored, until the page is left. */
const drafts = new Map();
document.addEventListener("own-data-deleted", () => drafts.clear());
/**
 * Let the visitor write another version of an answer. `act` stores it, and tells `fails` why it cannot. What was written is
 * there again when the dialog is opened again.
 * @param {string} text @param {(text: string, fails: (error: any) => void) => Promise<unknown>} act
 */
export function rewrite(text, act) {
  const key = `${shown.conversation} ${text}`;
  const area = make("textarea", { value: drafts.get(key) ?? text, "aria-labelledby": "order-title", dir: "auto" });
  const cancel = button("cancel", said.camera_cancel), keep = button("keep", said.text_save), state = make("p", { role: "status" });
  const undo = button("undo", said.chats_undo);
  undo.hidden = !drafts.has(key);
  undo.addEventListener("click", () => {
    drafts.delete(key);
    area.value = text;
    undo.hidden = true;
    area.focus();
  });
  area.addEventListener("input", () => drafts.set(key, area.value));
  cancel.addEventListener("click", () => dialog.close());
  keep.addEventListener("click", async () => {
    keep.disabled = true;
    state.textContent = "";
    const written = area.value, isKept = written === text || await act(written, tellIn(state));
    keep.disabled = false;
    if (!isKept || (drafts.get(key) ?? written) !== written) return; // more was written meanwhile
    drafts.delete(key);
    if (area.isConnected) dialog.close();
  });
  showDialog(said.rewrite, make("p", {}, said.rewrite_how, " ", said.rewrite_left), area, state, make("div", { class: "actions" }, undo, cancel, keep));
  area.focus();
}

/** Ask what to send to the owner about an answer. @param {boolean} isGood @param {(rating: {reason: string, text: boolean}) => Promise<unknown>} act */
export function rate(isGood, act) {
  const reason = make("textarea", { "aria-label": said.rate_reason, placeholder: said.rate_reason, maxLength: 1000, dir: "auto" });
  const text = make("input", { type: "checkbox" }), state = make("p", { role: "status" });
  const cancel = button("cancel", said.camera_cancel), send = button("keep", said.transcript.send);
  cancel.addEventListener("click", () => dialog.close());
  send.addEventListener("click", async () => {
    send.disabled = true;
    try {
      await act({ reason: reason.value, text: text.checked });
      if (send.isConnected) dialog.close();
      hint(said.rated);
    } catch (error) {
      tellIn(state)(error);
    }
    send.disabled = false;
  });
  showDialog(isGood ? said.rate_good : said.rate_bad, make("p", {}, said.rate_how), reason,
    make("label", {}, text, make("span", {}, said.rate_text)), state, make("div", { class: "actions" }, cancel, send));
  reason.focus();
}

/** Show the versions of the chat as a tree. `act` shows the one of a message. */
export async function tree() {
  const chat = shown.conversation, { branches, is_cut: isCut } = await ask(`/${chat}/branches`).catch((error) => refused(error) ?? {});
  if (!branches || chat !== shown.conversation) return;
  const here = branches.findLast(({ is_shown: isShown }) => isShown), close = button("close", said.close);
  close.addEventListener("click", () => dialog.close());
  const rows = branches.map((row) => {
    const { message, text, answer, model, turns, depth, is_shown: isShown } = row;
    const go = make("button", { type: "button", ...(row === here && { "aria-current": "true" }) }, make("b", { dir: "auto" }, text),
      make("small", { dir: "auto" }, [answer, model, said.tree_turns.replace("{count}", () => turns)].filter(Boolean).join(" · ")));
    go.addEventListener("click", () => {
      dialog.close();
      seek({ message, is_answer: false, is_shown: isShown }, [text]);
    });
    const item = make("li", { "data-shown": String(isShown) }, go);
    item.style.setProperty("--depth", String(Math.min(depth, 8)));
    return item;
  });
  showDialog(said.tree, make("p", {}, branches.length > 1 ? said.tree_how : said.tree_none), make("ul", { role: "list" }, ...rows),
    ...(isCut ? [make("p", {}, said.tree_cut)] : []), make("div", { class: "actions" }, close));
  ($("[aria-current]", body) ?? close).focus();
}

/** Show how often the visitor has voted for each model. */
export async function tally() {
  const { models, names } = await request("/votes").catch((error) => refused(error) ?? {});
  if (!models) return;
  const rows = Object.entries(models), close = button("close", said.close);
  close.addEventListener("click", () => dialog.close());
  const head = make("tr", {}, ...[said.model, said.vote_won, said.vote_lost, said.vote_ties, said.vote_bad].map((text) => make("th", { scope: "col" }, text)));
  const lines = rows.map(([model, { won, lost, tied, bad }]) =>
    make("tr", {}, make("th", { scope: "row", dir: "auto" }, names[model]), ...[won, lost, tied, bad].map((count) => make("td", {}, String(count)))));
  const saves = ["csv", "json"].map((form) => make("a", { href: addressOf("/votes", { format: form }).href, download: "" }, said[`vote_${form}`]));
  showDialog(said.votes, make("p", {}, rows.length ? said.votes_how : said.votes_none),
    ...(rows.length ? [make("table", {}, make("thead", {}, head), make("tbody", {}, ...lines))] : []),
    make("div", { class: "actions" }, ...(rows.length ? saves : []), close));
}

// The search in the open chat: a bar above it. The newest message with the text comes first.
const bar = make("search", { id: "find", hidden: true });
const field = make("input", { type: "search", placeholder: said.find, "aria-label": said.find, autocomplete: "off", spellcheck: false, maxlength: "200", enterkeyhint: "search" });
const count = make("span", { role: "status" });
const control = (name, label) => make("button", { type: "button", class: name, title: label, "aria-label": label });
const older = control("older", said.find_older), newer = control("newer", said.find_newer), leave = control("leave", said.find_close);
bar.append(field, count, older, newer, leave);
when("#chat", (chat) => chat.before(bar));
let typing, wish = 0, hits = [], at = -1, next = null;
const tell = () => {
  const text = said.find_count.replace("{number}", () => at + 1).replace("{count}", () => `${hits.length}${next ? "+" : ""}`);
  count.textContent = hits.length ? text : field.value.trim() && !typing ? said.find_none : "";
  older.disabled = at >= hits.length - 1 && !next;
  newer.disabled = at <= 0;
};
// Reads on, until there is a hit more or the chat is over.
const read = async (mine) => {
  const before = hits.length, query = encodeURIComponent(field.value.trim());
  for (let left = MOST_PAGES; left && hits.length === before && (next || !before); left--) {
    const found = await ask(`/${shown.conversation}/search?q=${query}${next ? `&before=${next}` : ""}`);
    if (mine !== wish) return;
    hits.push(...found.hits);
    next = found.next;
    if (!next) break;
  }
};
const show = () => {
  tell();
  if (hits[at]) seek({ ...hits[at], is_shown: true }, [field.value.trim()]);
};
const move = async (by) => {
  const mine = wish;
  if (at + by >= hits.length && next) await read(mine).catch(refused);
  if (mine !== wish || !hits[at + by]) return tell();
  at += by;
  show();
};
const start = async () => {
  const mine = ++wish;
  [typing, hits, at, next] = [undefined, [], -1, null];
  if (!field.value.trim() || !shown.conversation) return over();
  await read(mine).catch(refused);
  if (mine !== wish) return;
  at = hits.length ? 0 : -1;
  show();
};
const over = () => {
  tell();
  document.dispatchEvent(new Event("search-over"));
};
const end = () => {
  wish += 1;
  clearTimeout(typing);
  [typing, hits, at, next, bar.hidden, field.value] = [undefined, [], -1, null, true, ""];
  over();
};
field.addEventListener("input", () => {
  clearTimeout(typing);
  wish += 1;
  typing = setTimeout(start, TYPED_MS);
});
bar.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    end();
    box()?.focus();
  } else if (event.key === "Enter" && event.target === field) typing ? (clearTimeout(typing), start()) : move(event.shiftKey ? -1 : 1);
  else return;
  event.preventDefault();
  event.stopPropagation();
});
older.addEventListener("click", () => move(1));
newer.addEventListener("click", () => move(-1));
leave.addEventListener("click", () => {
  end();
  box()?.focus();
});
document.addEventListener("chat-opening", end);
/** Search in the chat that is shown. */
export function find() {
  bar.hidden = false;
  tell();
  field.select();
  field.focus();
}
