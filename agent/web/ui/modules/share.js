// The read-only links to a chat: a dialog that makes, lists and revokes them. chats.js has its entry in the menu.
import { ask as askOf } from "./network.js";
import { $, button, language, make, panel, root, said } from "./shared.js";

const DAYS = [1, 7, 30, 90];
let chat; // the id of the chat that the dialog is about
let visit = 0; // the times that it was opened
// What is asked before the dialog is opened again changes nothing of it.
const ask = async (path = "", how = {}) => {
  const mine = visit, answer = await askOf(`/${chat}/links${path}`, how);
  if (mine !== visit) throw new Error("the dialog is about another chat");
  return answer;
};
const day = (time) => new Date(time).toLocaleDateString(language, { dateStyle: "medium" });
const fill = (text, date) => text.replace("{date}", () => day(date));
const systemPrompt = () => (panel.values().system_message ?? "").trim();

// The choices
const choice = (text) => {
  const box = make("input", { type: "checkbox" });
  return { box, label: make("label", {}, box, make("span", {}, text)) };
};
const later = choice(said.share_later), files = choice(said.share_files), system = choice(said.share_prompt);
const preview = make("p", { class: "prompt", dir: "auto" });
const days = make("select");
const create = button("create", said.share_create), another = button("another", said.share_another);
const close = button("close", said.close);
const form = make("div", { class: "choices" },
  make("fieldset", {}, make("legend", {}, said.share_also), later.label, files.label, system.label, preview,
    make("p", { class: "note" }, said.share_quotes)),
  make("label", { class: "days" }, make("span", {}, said.share_expires), days));
// The new link
const address = make("input", { readonly: "", "aria-label": said.share_link, "aria-describedby": "share-state", dir: "ltr" });
const copy = button("copy", said.share_copy);
const made = make("div", { class: "made", hidden: true }, address, copy);
const state = make("p", { id: "share-state", role: "status" });
// Those that there are
const list = make("ul", { role: "list", "aria-labelledby": "share-links" });
const links = make("section", { hidden: true }, make("h3", { id: "share-links" }, said.share_links), list);
const dialog = make("dialog", { id: "share", "aria-labelledby": "share-title" },
  make("h2", { id: "share-title" }, said.share_title), make("p", { class: "chat", dir: "auto" }),
  make("p", {}, said.share_what), form, made, state, links, make("div", { class: "actions" }, close, another, create));
dialog.addEventListener("close", () => dialog.remove());

const isNumber = (value) => typeof value === "number";
const offer = (usual) => {
  const values = [...new Set([...DAYS, ...(isNumber(usual) ? [usual] : [])])].sort((one, other) => one - other);
  days.replaceChildren(...[...values, null].map((value) => make("option", { value: value ?? "" }, isNumber(value)
    ? value.toLocaleString(language, { style: "unit", unit: "day", unitDisplay: "long" }) : said.share_never)));
  days.value = usual ?? "";
};
const item = (link) => {
  const expiry = link.expires_at ? fill(said.share_until, link.expires_at) : said.share_ever;
  const shown = [["later_messages", said.share_later], ["attachments", said.share_files], ["system_prompt", said.share_prompt]];
  const drop = button("revoke", said.share_revoke), one = make("li", {},
    make("span", {}, `${fill(said.share_made, link.created_at)} · ${expiry}`,
      make("small", {}, shown.flatMap(([name, text]) => (link[name] ? [text] : [])).join(" · "))), drop);
  drop.addEventListener("click", () => act(async () => {
    await ask(`/${link.id}`, { method: "DELETE" });
    if (made.dataset.id === link.id) offers(true);
    say(said.share_revoked);
    await read();
    (list.querySelector("button") ?? (create.hidden ? another : create)).focus();
  }));
  return one;
};
// Shows the choices for a link, or the link that was made.
const offers = (choosing) => {
  form.hidden = create.hidden = !choosing;
  made.hidden = another.hidden = choosing;
  copy.textContent = said.share_copy;
};
// Selects the link, of which the beginning stays in view.
const selectAddress = () => {
  address.setSelectionRange(0, address.value.length, "backward");
  address.scrollLeft = 0;
};
const say = (text) => (state.textContent = text);
const read = async () => {
  const found = await ask();
  list.replaceChildren(...found.links.map(item).reverse());
  links.hidden = !found.links.length;
  return found;
};
// One request at a time. A failure is said.
const act = async (how) => {
  if (dialog.ariaBusy === "true") return;
  const mine = visit;
  dialog.ariaBusy = "true";
  try {
    await how();
  } catch (error) {
    if (mine === visit) say(error.status ? error.message : said.chats_failed);
  }
  if (mine === visit) dialog.ariaBusy = "false";
};

create.addEventListener("click", () => act(async () => {
  say("");
  const link = await ask("", { method: "POST", body: {
    days: days.value ? Number(days.value) : null, later_messages: later.box.checked, attachments: files.box.checked,
    system_prompt: system.box.checked ? systemPrompt() : "",
  } });
  address.value = location.origin + root + link.path;
  made.dataset.id = link.id;
  offers(false);
  say(link.ends_before_answer ? `${said.share_unfinished} ${said.share_once}` : said.share_once);
  address.focus();
  selectAddress();
  await read();
}));
copy.addEventListener("click", async () => {
  selectAddress();
  try {
    await navigator.clipboard.writeText(address.value);
  } catch {
    if (!document.execCommand("copy")) return; // it is selected, and the sentence asks to copy it
  }
  copy.textContent = said.copied;
  say(said.share_copied);
});
another.addEventListener("click", () => {
  say("");
  offers(true);
  create.focus();
});
system.box.addEventListener("change", () => (preview.textContent = system.box.checked ? systemPrompt() : ""));
close.addEventListener("click", () => dialog.close());

document.addEventListener("chat-titled", ({ detail: { id, title } }) => { // after the list has come
  if (dialog.open && id === chat && title) $(".chat", dialog).textContent = title;
});
/** Open the dialog for a chat. */
export function share(id, title) {
  if (dialog.open) return;
  chat = id;
  visit += 1;
  dialog.ariaBusy = "false";
  $(".chat", dialog).textContent = title;
  for (const { box } of [later, files, system]) box.checked = false;
  preview.textContent = address.value = "";
  system.label.hidden = !systemPrompt();
  links.hidden = true;
  offers(true);
  list.replaceChildren();
  say("");
  days.replaceChildren();
  create.disabled = true; // until the usual expiry is known
  document.body.append(dialog); // only while it is open, because it names settings
  dialog.showModal();
  act(async () => {
    offer((await read()).default_days);
    create.disabled = false;
    create.focus();
  });
}
