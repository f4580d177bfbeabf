// The list of conversations at the side of the page, and the address of the page, which names the conversation.
// It comes from the server as JSON, and only when something has changed: at a send, at the end of an answer, after a
// change in another tab, and when the visitor comes back to this one.
import { links, space } from "texts";
import { composer, queue } from "./composer.js";
import { write } from "./gradio.js";
import { addressOf, ask, request, stream } from "./network.js";
import { $, TEMPORARY, box, editor, hint, inAddress, isTemporary, joined, kept, language, load, make, nameOf, ofAll, ofTab, root, said, shown as view, when } from "./shared.js";

const PAGE = 50, MOST = 200, SEARCH_MS = 200, SAY_MS = 10000, UNDO_MS = 30000, LAST_UNDO_MS = 55000, TICK_MS = 500, ANSWERING_MS = 3000, LATE_MS = 300;
const app = document.title || "Switchboard";
const wide = matchMedia("(min-width: 900px)");
const rows = new Map(); // by id, in the order of the list: those that are pinned first
const showTemporary = keepTemporary();
let next, shown = inAddress(); // the offset of the next page, and the open conversation
let query = "", hits;
let folders; // the module, once the visitor has one
const unseen = new Set(kept.get("unseen") ?? []); // chats whose answer has ended while this tab showed another one
const seenElsewhere = new Set(); // chats that another tab shows

const button = (name, label) => make("button", { type: "button", class: name, "aria-label": label, title: label });

// The frame: head, search, list, and a line for what was done.
const close = button("close", said.chats_close);
const again = button("new", said.new_chat);
const temporary = button("temporary", said.temporary);
const search = make("input", { type: "search", placeholder: said.chats_search, "aria-label": said.chats_search,
  autocomplete: "off", spellcheck: false, maxlength: "200", enterkeyhint: "search" });
const list = make("nav", { "aria-label": said.chats });
const empty = make("p", { class: "none", role: "status" });
const done = make("p", { class: "done", role: "status" });
const offers = make("div", { class: "offers", role: "status", "aria-atomic": "false" });
const brand = make("p", { class: "brand" }, make("i"), make("span", {}, app));
const aside = make("aside", { id: "chats", "aria-label": said.chats },
  make("div", { class: "head" }, brand, temporary, again, close), make("div", { class: "search" }, search), list, empty, offers, done);
const shade = make("div", { id: "chats-shade" });
document.body.prepend(aside, shade);

// Open and closed. On a narrow screen it is a drawer over the page, which keeps the focus.
const page = document.documentElement;
const isOpen = () => page.dataset.chats === "open";
const toggle = (open, { keep = true } = {}) => {
  page.dataset.chats = open ? "open" : "closed";
  const drawer = open && !wide.matches;
  // Nothing outside an open drawer can have the focus, and Tab can leave it on nothing at all.
  const hadFocus = aside.contains(document.activeElement) || aside.getAttribute("role") === "dialog";
  aside.inert = !open;
  $("gradio-app").inert = drawer;
  if (drawer) Object.entries({ role: "dialog", "aria-modal": "true" }).forEach((pair) => aside.setAttribute(...pair));
  else ["role", "aria-modal"].forEach((name) => aside.removeAttribute(name));
  $("#chats-toggle button")?.setAttribute("aria-expanded", open);
  if (keep && wide.matches) ofAll?.setItem("chats", page.dataset.chats);
  if (drawer) close.focus();
  else if (!open && hadFocus) $("#chats-toggle button")?.focus();
};
const adapt = () => toggle(wide.matches && ofAll?.getItem("chats") !== "closed", { keep: false });
wide.addEventListener("change", adapt);
adapt();
when("#chats-toggle button", (control) => {
  control.title = said.chats_toggle;
  control.setAttribute("aria-label", said.chats_toggle);
  control.setAttribute("aria-controls", "chats");
  control.setAttribute("aria-expanded", isOpen());
  control.addEventListener("click", () => toggle(!isOpen()));
});
when("#new button", (control) => (control.title = `${said.new_chat} (${said.key_new})`));
close.addEventListener("click", () => toggle(false));
shade.addEventListener("click", () => toggle(false));

// The server
const tabs = "BroadcastChannel" in window ? new BroadcastChannel(`chats${root}`) : undefined;
const tellTabs = () => tabs?.postMessage({ shown });
// Does something that the visitor wants, and says if it failed.
const act = async (path, how) => {
  try {
    const value = await ask(path, how);
    tellTabs();
    return value;
  } catch (error) {
    say(error.status ? error.message : said.chats_failed);
    refresh();
    return undefined;
  }
};
let reading, stale = false, timer;
let compared; // the row of the chat that is shown, before something happened elsewhere
const state = () => JSON.stringify([[...rows.values()], next]);
const read = async () => {
  const found = [], wanted = Math.max(PAGE, rows.size);
  let offset = 0, pinned = [];
  while (offset !== null && found.length < wanted) {
    const part = await ask(`?offset=${offset}&limit=${Math.min(MOST, Math.max(PAGE, wanted - found.length))}`);
    pinned = offset ? pinned : part.pinned;
    found.push(...part.conversations);
    offset = part.next;
  }
  take([...pinned, ...found], offset);
};
const take = (found, offset) => {
  for (const { id, state } of found) {
    if (rows.get(id)?.state === "answering" && state !== "answering") unseen.add(id);
  }
  for (const id of [shown, ...seenElsewhere]) unseen.delete(id);
  seenElsewhere.clear();
  kept.set("unseen", [...unseen]);
  rows.clear();
  for (const row of found) rows.set(row.id, row);
  next = offset;
};
// Reads the list again, as far as it is shown. Several wishes at once need one more reading.
// `elsewhere`: something has happened in another tab. `timed`: nothing has happened here.
const refresh = async ({ tell = false, elsewhere = false, timed = false } = {}) => {
  if (elsewhere) compared = rows.get(shown);
  if (reading) return void (stale = true);
  clearTimeout(timer);
  reading = true;
  const before = state();
  try {
    await read();
    if (query) hits = (await ask(`?q=${encodeURIComponent(query)}`)).hits;
  } catch {
    // without a network the list stays as it is
  }
  reading = false;
  draw();
  if (folders ? elsewhere : ofAll?.getItem("folders") || [...rows.values()].some(({ folder }) => folder)) readFolders();
  else if (!timed) folders?.more(next !== null);
  if (tell && state() !== before) tellTabs();
  if (stale) {
    stale = false;
    return refresh();
  }
  showChanges();
  followDeletion();
  // The end of an answer in another chat is seen only here.
  if ([...rows.values()].some(({ state, id, naming }) => (naming && state !== "answering") || (state === "answering" && id !== shown))) {
    timer = setTimeout(() => refresh({ timed: true }), ANSWERING_MS);
  }
};
const readFolders = async () => {
  folders = await load("folders").catch(() => folders);
  await folders?.read();
  folders?.more(next !== null);
};
document.addEventListener("chat-lost", () => refresh()); // it was deleted meanwhile
// Shows the chat again if another tab has changed it.
const showChanges = () => {
  const before = compared, now = rows.get(shown);
  compared = undefined;
  if (!before || !now || before.id !== now.id || stream.reading()) return;
  if (now.state === "answering" || now.updated_at !== before.updated_at) want(shown);
};
// The chat that is shown can be deleted elsewhere, and come back.
let gone = "";
const followDeletion = async () => {
  const id = shown, isStill = () => id === shown && !isSending() && !composer.isSending();
  if (!id && rows.has(gone) && isStill()) return drop(gone);
  if (!id || isTemporary(id) || rows.has(id) || view.conversation !== id) return;
  const isGone = await ask(`/${id}`).then(() => false, ({ status }) => status === 404);
  if (!isGone || !isStill()) return;
  drop();
  gone = id;
  miss(said.chat_gone);
};
const more = async () => {
  if (reading || query || next === null || next === undefined) return;
  reading = true;
  try {
    const part = await ask(`?offset=${next}&limit=${PAGE}`);
    take([...rows.values(), ...part.conversations.filter(({ id }) => !rows.has(id))], part.next);
  } catch {
    next = undefined; // the next refresh tries again
  }
  reading = false;
  draw();
  if (stale) { // something has happened meanwhile, for example a deletion
    stale = false;
    refresh();
  }
};
list.addEventListener("scroll", () => {
  if (list.scrollTop + 2 * list.clientHeight > list.scrollHeight) more();
}, { passive: true });
tabs?.addEventListener("message", ({ data }) => {
  seenElsewhere.add(data.shown);
  refresh({ elsewhere: true });
  if (data.changed && data.changed === shown && !stream.reading()) want(shown);
});
document.addEventListener("chat-changed", () => {
  tabs?.postMessage({ shown, changed: shown });
  refresh(); // its title can be another one
});
const showImported = () => {
  tellTabs();
  list.scrollTop = 0;
  refresh();
};
document.addEventListener("own-data-deleted", () => {
  tellTabs();
  folders?.read();
  unseen.clear();
  ofAll?.removeItem("viewed");
  drop();
  drafts.clear();
  offers.replaceChildren();
  say("");
  refresh();
});
const endTemporary = () => {
  drop();
  miss(said.temporary_over);
};
addEventListener("focus", () => refresh());
document.addEventListener("visibilitychange", () => document.hidden || refresh());

// The list by day
const days = new Intl.RelativeTimeFormat(language, { numeric: "auto" });
const midnight = (date) => new Date(date.getFullYear(), date.getMonth(), date.getDate());
const dayOf = (time) => {
  const date = new Date(time), now = new Date();
  const ago = Math.round((midnight(now).getTime() - midnight(date).getTime()) / 86400000);
  let name;
  if (ago < 2) name = days.format(-Math.max(ago, 0), "day");
  else if (ago < 7) name = date.toLocaleDateString(language, { weekday: "long" });
  else name = date.toLocaleDateString(language, { day: "numeric", month: "long",
    ...(date.getFullYear() === now.getFullYear() ? {} : { year: "numeric" }) });
  return name.charAt(0).toLocaleUpperCase(language) + name.slice(1);
};
const groups = () => {
  if (query) return hits ? [["", hits]] : [];
  const named = new Map();
  for (const row of rows.values()) {
    if (folders?.has(row.folder)) continue;
    const name = row.pinned ? said.chats_pinned : dayOf(row.updated_at);
    if (!named.has(name)) named.set(name, []);
    named.get(name).push(row);
  }
  return [...named];
};
const titleOf = (row) => row.title || said.new_chat;
const marked = (parts) => parts.map((part, n) => (n % 2 ? make("mark", {}, part) : part));
// Elements are kept by group and id, so that the focus and the place stay when the list changes.
const elements = new Map();
const keep = (key, make) => elements.get(key) ?? (elements.set(key, make()), elements.get(key));
const place = (parent, children) => {
  children.forEach((child, n) => parent.children[n] === child || parent.insertBefore(child, parent.children[n] ?? null));
  while (parent.children.length > children.length) parent.lastChild.remove();
};
// Shows a title in parts, of which every second one was searched for. The number at its end has an element of its own,
// which is never cut.
const NUMBER = / \((?:[2-9]|[1-9]\d)\)$/;
const entitled = (element, ...parts) => {
  const text = parts.join(""), end = NUMBER.exec(text)?.index ?? text.length;
  const piece = (start, stop) => {
    let at = 0;
    const cut = parts.map((part) => {
      const from = at;
      at += part.length;
      return part.slice(Math.max(start - from, 0), Math.max(stop - from, 0));
    });
    return marked(cut).filter((one, n) => cut[n]);
  };
  const isNumbered = end < text.length;
  element.classList.toggle("numbered", isNumbered);
  element.replaceChildren(...(isNumbered
    ? [make("span", { class: "words" }, ...piece(0, end)), make("span", { class: "number" }, ...piece(end, text.length))]
    : piece(0, end)));
};
const item = (row, searched) => {
  const one = keep(`${searched ? "hit" : "row"} ${row.id}`, () => {
    const link = make("a", { href: `${root}/c/${row.id}` },
      make("span", { class: "title", dir: "auto" }), make("span", { class: "mark", role: "img" }));
    if (searched) link.append(make("span", { class: "excerpt", dir: "auto" }));
    const options = make("button", { type: "button", class: "more", "aria-haspopup": "menu", "aria-expanded": "false" });
    return make("li", { "data-id": row.id }, link, options);
  });
  const link = $("a", one);
  if (!link) return one; // it is being renamed
  const title = $(".title", one), mark = $(".mark", one), options = $(".more", one);
  if (title.textContent !== titleOf(row) || $("mark", title)) entitled(title, (link.title = titleOf(row)));
  if (row.id === shown) link.setAttribute("aria-current", "page");
  else link.removeAttribute("aria-current");
  const state = row.state || (unseen.has(row.id) && row.id !== shown ? "ready" : "");
  mark.hidden = !state || (state === "answering" && row.id === shown); // there one sees it
  mark.dataset.state = state;
  mark.setAttribute("aria-label", { answering: said.chats_answering, waiting: said.answer_asks, ready: said.answer_ready }[state] ?? "");
  mark.title = mark.getAttribute("aria-label");
  options.setAttribute("aria-label", said.chats_options.replace("{title}", () => titleOf(row)));
  if (searched) {
    $(".excerpt", one).replaceChildren(...(row.in_title ? [] : marked(row.excerpt)));
    if (row.in_title && row.excerpt.length > 1) { // the hits are in the title itself
      const number = NUMBER.exec(titleOf(row))?.[0] ?? "", isCut = !row.excerpt.join("").endsWith(number);
      entitled(title, ...row.excerpt, ...(isCut ? ["", number] : []));
    }
  }
  return one;
};
const draw = () => {
  const active = aside.contains(document.activeElement) ? document.activeElement : undefined;
  const used = new Set();
  const sections = groups().map(([name, members]) => {
    const section = keep(`day ${name}`, () => {
      const made = make("section", name ? { "aria-label": name } : {});
      if (name) made.append(Object.assign(make("h2"), { textContent: name }));
      made.append(make("ul", { role: "list" }));
      return made;
    });
    const items = members.map((row) => item(row, Boolean(query)));
    items.forEach((one) => used.add(one));
    used.add(section);
    place($("ul", section), items);
    return section;
  });
  place(list, [...((!query && folders?.sections(used)) || []), ...sections]);
  for (const [key, one] of elements) if (!used.has(one)) elements.delete(key);
  if (active?.isConnected && active !== document.activeElement) active.focus({ preventScroll: true });
  const none = query ? hits && !hits.length : next === null && !rows.size;
  empty.textContent = none ? (query ? said.chats_not_found : said.chats_none) : "";
  entitle();
  if (!query && next && list.scrollHeight <= list.clientHeight) more();
};

// While the visitor looks at another tab, the title of this one says that the answer has ended.
let hiddenTitle;
/** Say in the title of the page that an answer has ended. `asks`: it waits for the visitor. */
export const announceEnd = (asks) => {
  if (!document.hidden) return;
  hiddenTitle ??= document.title;
  document.title = `${asks ? said.answer_asks : said.answer_ready} · ${hiddenTitle}`;
};
document.addEventListener("visibilitychange", () => {
  if (document.hidden || hiddenTitle === undefined) return;
  document.title = hiddenTitle;
  hiddenTitle = undefined;
});
// It says, too, that the chat that is shown waits for the visitor, or one whose answer has ended since it was seen.
const waits = () => [shown, ...unseen].some((id) => rows.get(id)?.state === "waiting");
const entitlePage = (title) => {
  const text = waits() ? `${said.answer_asks} · ${title}` : title;
  if (hiddenTitle === undefined) document.title = text;
  else hiddenTitle = text;
};

// The title of the open chat, in the header and in the title of the page.
let fetched; // the row of an open chat that is not in the list so far
let shownTitle = ""; // until the list has the open chat
const entitle = () => {
  const row = isTemporary(shown) ? { title: said.temporary } : rows.get(shown) ?? (fetched?.id === shown ? fetched : undefined);
  if (shown && !row && next !== undefined && fetched?.asked !== shown) {
    fetched = { asked: shown };
    ask(`/${shown}`).then((found) => {
      fetched = { ...found, asked: found.id };
      entitle();
    }, () => {});
  }
  const title = row ? titleOf(row) : "";
  const head = $("#name h1");
  if (head && head.textContent !== (title || app)) entitled(head, title || app);
  if (head) head.dir = "auto";
  entitlePage(title ? `${title} · ${app}` : app);
  shownTitle = title;
  document.dispatchEvent(new CustomEvent("chat-titled", { detail: { id: shown, title } }));
};

const share = async ({ id, title }) => (await load("share").catch(() => hint(said.chats_failed)))?.share(id, title);
when("#share-chat button", (control) => {
  control.title = said.share_title;
  control.setAttribute("aria-label", said.share_title);
  control.addEventListener("click", () => share({ id: shown, title: shownTitle }));
});

// The search, in titles and text
let typing;
const find = async (text) => {
  if (text !== query) return;
  try {
    const found = (await ask(`?q=${encodeURIComponent(text)}`)).hits;
    if (text !== query) return;
    hits = found;
    say("");
  } catch (error) {
    say(error.status ? error.message : said.chats_failed);
  }
  draw();
};
search.addEventListener("input", () => {
  clearTimeout(typing);
  query = search.value.trim();
  if (query) typing = setTimeout(find, SEARCH_MS, query);
  else {
    hits = undefined;
    draw();
    document.dispatchEvent(new Event("search-over"));
  }
});

// What did not work
let leaving;
const say = (text) => {
  clearTimeout(leaving);
  done.replaceChildren(text);
  if (text) leaving = setTimeout(() => done.replaceChildren(), SAY_MS);
};
// What was done, with a way back. Each deletion has its own.
const offer = (text, undo) => {
  const back = make("button", { type: "button" }, said.chats_undo);
  const line = make("p", { class: "done" }, make("span", { dir: "auto" }, text), back);
  const end = () => {
    clearInterval(timer);
    if (line.contains(document.activeElement)) search.focus();
    line.remove();
  };
  // It waits for a pointer on it, and for somebody who is on the way to it with the Tab key, as long as the server does.
  let left = UNDO_MS, all = LAST_UNDO_MS;
  const isWanted = () => line.matches(":hover") || Boolean($(":focus-visible", aside));
  const timer = setInterval(() => {
    all -= TICK_MS;
    if (!isWanted()) left -= TICK_MS;
    if (Math.min(left, all) <= 0) end();
  }, TICK_MS);
  back.addEventListener("click", () => {
    end();
    undo();
  });
  offers.append(line);
};

// Another chat. live.js shows it.
const want = (id) => document.dispatchEvent(new CustomEvent("chat-wanted", { detail: id }));
const drafts = new Map(); // what is in the composer of other chats, by chat
let left = "", late; // the chat that was shown before
// Messages of the chat that was left are hidden if the next one comes late, for example without a network.
const hide = (isLate) => document.documentElement.toggleAttribute("data-late", isLate);
const wait = (isOther) => {
  clearTimeout(late);
  if (isOther) late = setTimeout(hide, LATE_MS, true);
};
// Tells the others which chat is shown.
const tell = () => {
  document.documentElement.toggleAttribute("data-shareable", links && shown && !isTemporary(shown));
  if (shown && !isTemporary(shown)) ofAll?.setItem("viewed", shown); // the page without an address shows it again
  showTemporary(shown);
  queue.returned(shown);
};
const isSending = () => Boolean($("#sending p"));
const open = (id, { keepsDraft = false } = {}) => {
  [left, shown, gone] = [shown, id, ""];
  wait(id !== left);
  fetched = fetched?.asked === id ? fetched : undefined;
  miss("");
  document.dispatchEvent(new CustomEvent("chat-opening", { detail: left }));
  if (left !== id) hint(""); // of the chat that is left
  tell();
  if (left !== id && !keepsDraft) {
    const from = left;
    editor.leave((files) => keepDraft(from, { text: "", files }));
    composer.change(swap);
  }
  want(id);
  draw();
  if (!wide.matches && isOpen()) toggle(false);
  if (wide.matches || !id || id === TEMPORARY) box()?.focus();
};
// Shows a new chat instead of one that is gone, or that one again. What is in the composer stays there.
const drop = (id = "") => {
  history.replaceState(id ? null : { isNew: true }, "", id ? `${root}/c/${id}` : `${root}/`);
  open(id, { keepsDraft: true });
  left = id;
  composer.change(swap);
};
const go = (id, { replace = false, keepsDraft = false } = {}) => {
  if (isSending()) return hint(said.chats_sending, isSending);
  const address = id ? `${root}/c/${id}` : `${root}/`, kind = replace || address === location.pathname ? "replaceState" : "pushState";
  history[kind](id ? null : { isNew: true }, "", address); // a reload shows a new chat again
  open(id, { keepsDraft });
  return true;
};
addEventListener("popstate", () => {
  if (inAddress() !== shown || !inAddress()) open(inAddress());
});
document.addEventListener("click", (event) => {
  if (!event.target.closest?.("#new, #chats .new")) return;
  event.preventDefault();
  go("");
});
temporary.addEventListener("click", () => go(TEMPORARY));
list.addEventListener("click", (event) => {
  const link = event.target.closest("a");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  const { id } = link.closest("li").dataset, hit = query && hits?.find((one) => one.id === id);
  go(id);
  if (hit?.entry && shown === id) seek(hit);
});
// Finds out where the hit is. live.js scrolls to it.
const seek = ({ id, entry, excerpt }) => {
  // As they are in the excerpt, and as they were typed, because some can be in the message after its excerpt.
  const words = [...excerpt.filter((_, n) => n % 2), ...query.split(/\s+/)];
  ask(`/${id}/messages/${entry}`).then((place) => {
    const detail = { ...place, conversation: id, words };
    document.dispatchEvent(new CustomEvent("message-sought", { detail }));
  }, () => {}); // the chat is open, without a mark
};

// A sentence instead of a chat that is not there
const missing = make("p", { id: "missing", role: "status" });
when("#chat", (chat) => chat.before(missing));
const miss = (sentence) => (missing.textContent = sentence);

let isFirst = true; // view since the page was loaded
document.addEventListener("chat-view", ({ detail: { conversation, missing: sentence } }) => {
  wait(false);
  hide(false);
  if (sentence || conversation) miss(sentence);
  if (sentence && isTemporary(inAddress())) endTemporary();
  else if (sentence) shown = "";
  else if (conversation && conversation !== inAddress()) {
    // A new chat got its id, or the last one is shown. Or the chat was deleted, and the message began another one.
    history.replaceState(null, "", `${root}/c/${conversation}`);
    if (shown && !isTemporary(shown)) ask(`/${shown}`).catch(({ status }) => status === 404 && hint(said.chat_renewed));
    shown = conversation;
    restoreDraft();
  }
  tell();
  if (isFirst && (reading || next !== undefined)) draw(); // the list is being read, or was just now
  else refresh({ tell: true });
  isFirst = false;
});

// The menu of a chat
const menu = make("div", { id: "chats-menu", role: "menu", popover: "auto" });
const entry = (kind, text) => {
  const made = make("button", { type: "button", role: "menuitem", tabindex: "-1", class: kind });
  made.append(text);
  return made;
};
document.body.append(menu);
let about, opener;
const showMenu = (control) => {
  opener = control;
  const { id } = control.closest("li").dataset;
  about = (hits ?? []).find((one) => one.id === id) ?? rows.get(id) ?? folders?.find(id);
  if (!about) return;
  const pin = entry("pin", about.pinned ? said.chats_unpin : said.chats_pin);
  const forms = ["html", "markdown", "json"].map((form) =>
    Object.assign(entry("export", said[`export_${form}`]), { value: form }));
  const share = links ? [entry("share", said.share)] : [];
  const inside = about.id === shown ? [entry("find", said.find), entry("tree", said.tree)] : [];
  menu.replaceChildren(entry("rename", said.chats_rename), pin, entry("folder", said.chats_folder), ...inside, ...share, ...forms, entry("delete", said.chats_delete));
  menu.showPopover();
  const at = control.getBoundingClientRect(), size = menu.getBoundingClientRect();
  const rtl = getComputedStyle(control).direction === "rtl";
  const start = rtl ? at.right - size.width : at.left;
  menu.style.left = `${Math.max(8, Math.min(start, innerWidth - size.width - 8))}px`;
  menu.style.top = `${at.bottom + size.height + 8 > innerHeight ? at.top - size.height - 4 : at.bottom + 4}px`;
  control.setAttribute("aria-expanded", "true");
  menu.firstChild.focus();
};
menu.addEventListener("toggle", (event) => event.newState === "closed" && opener?.setAttribute("aria-expanded", "false"));
list.addEventListener("click", (event) => {
  const control = event.target.closest(".more");
  if (control) showMenu(control);
});
menu.addEventListener("keydown", (event) => {
  const entries = [...menu.children], at = entries.indexOf(document.activeElement);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1 }[event.key];
  if (event.key === "Tab") menu.hidePopover();
  if (to === undefined) return;
  event.preventDefault();
  entries.at(to % entries.length).focus();
});
menu.addEventListener("click", (event) => {
  const chosen = event.target.closest("button"), kind = chosen?.className;
  if (!kind) return;
  menu.hidePopover();
  opener?.focus();
  if (kind === "rename") rename(opener.closest("li"), about);
  else if (kind === "pin") pin(about);
  else if (kind === "folder") move(about);
  else if (kind === "find" || kind === "tree") order(kind);
  else if (kind === "share") share({ id: about.id, title: titleOf(about) });
  else if (kind === "export") exportChats(`/${about.id}`, chosen.value);
  else remove(about);
});

const order = async (kind) => {
  const module = await load("order").catch(() => hint(said.chats_failed));
  if (!wide.matches && isOpen()) toggle(false);
  module?.[kind]();
};
const move = async (row) => {
  if (!folders?.isRead()) await readFolders();
  if (folders?.isRead()) folders.move(row);
  else hint(said.chats_failed);
};
const update = (row) => {
  if (row && rows.has(row.id)) rows.set(row.id, { ...rows.get(row.id), ...row });
  const hit = row && hits?.findIndex(({ id }) => id === row.id);
  if (hit >= 0) hits[hit] = { ...hits[hit], ...row, in_title: false };
  if (row && fetched?.id === row.id) fetched = { ...fetched, ...row };
  folders?.update(row);
  draw();
};
const pin = async (row) => {
  const changed = await act(`/${row.id}`, { method: "PATCH", body: { pinned: !row.pinned } });
  if (changed) await refresh();
};
let endRenaming;
const rename = (one, row) => {
  const link = $("a", one);
  const input = make("input", { "aria-label": said.chats_title, maxlength: "120", dir: "auto" });
  input.value = row.title;
  link.replaceWith(input);
  input.select();
  input.focus();
  let over = false;
  const end = (endRenaming = async (save) => {
    if (over) return;
    over = true;
    const title = input.value.trim(), hadFocus = document.activeElement === input;
    input.replaceWith(link);
    if (hadFocus) link.focus();
    if (!save || !title || title === row.title) return draw();
    update({ id: row.id, title });
    update(await act(`/${row.id}`, { method: "PATCH", body: { title } }));
  });
  input.addEventListener("blur", () => end(true));
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    end(true);
    event.preventDefault();
    event.stopPropagation();
  });
};
const remove = async (row) => {
  const items = [...list.querySelectorAll("li")], at = items.findIndex(({ dataset }) => dataset.id === row.id);
  if (!await act(`/${row.id}`, { method: "DELETE" })) return;
  const wasShown = row.id === shown;
  rows.delete(row.id);
  folders?.drop(row.id);
  hits = hits?.filter(({ id }) => id !== row.id);
  if (wasShown) go("", { replace: true, keepsDraft: true });
  draw();
  document.dispatchEvent(new Event("chat-deleted"));
  say("");
  offer(said.chats_deleted.replace("{title}", () => titleOf(row)), async () => {
    const back = await act(`/${row.id}/restore`, { method: "POST" });
    await refresh();
    document.dispatchEvent(new Event("chat-restored"));
    if (back && wasShown && !shown) go(row.id, { replace: true, keepsDraft: true });
    else $(`li[data-id="${row.id}"] a`, list)?.focus();
  });
  if (isOpen()) (list.querySelectorAll("li a")[at] ?? list.querySelectorAll("li a")[at - 1] ?? search).focus();
  refresh();
};

// Keys. These come first: Escape closes what is open here and does not stop an answer.
window.addEventListener("keydown", (event) => {
  if (event.code === "KeyO" && event.shiftKey && (event.ctrlKey || event.metaKey) && !event.altKey) {
    event.preventDefault();
    event.stopImmediatePropagation();
    if (!$("dialog[open]")) go("");
  } else if (event.key === "Escape" && (menu.matches(":popover-open") || event.target.closest?.("#chats li input"))) {
    event.stopImmediatePropagation();
    if (menu.matches(":popover-open")) {
      menu.hidePopover();
      opener?.focus();
    } else endRenaming?.(false);
  } else if (event.key === "Escape" && event.target === search && search.value) {
    event.preventDefault();
    event.stopImmediatePropagation();
    search.value = "";
    search.dispatchEvent(new Event("input"));
  } else if (event.key === "Escape" && isOpen() && !wide.matches && !$("dialog[open]")) {
    event.stopImmediatePropagation();
    toggle(false);
  } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && event.target.closest?.("#chats a, #chats input[type=search]")) {
    const stops = [search, ...list.querySelectorAll("li > a")];
    const to = stops[stops.indexOf(event.target) + (event.key === "ArrowDown" ? 1 : -1)];
    if (!to) return;
    event.preventDefault();
    to.focus();
  }
}, true);

// Drafts: each chat has its own, also after a reload. Gradio reloads the page when a lost server comes back.
const nothing = () => ({ text: "", files: [] });
// Gets what is in the composer, keeps it for the chat that is left, and returns what was left in this one.
const swap = (now) => {
  const value = queue.keep(now);
  if (left !== shown || value.text || value.files.length) drafts.set(left, value);
  const draft = drafts.get(shown) ?? nothing();
  drafts.delete(shown);
  setTimeout(restoreFiles);
  return draft;
};
/** Show a copy of this chat. The way back is to the original, and what was typed goes along. */
export const showCopy = (id) => {
  go(id, { keepsDraft: true });
  hint(said.branched);
};
/** Put a text into the composer of a chat, after what is there. That of a chat that is gone is still shown. */
export const keepDraft = (id, unsent) => {
  if (id === (shown || gone)) composer.change((value) => joined(value, unsent));
  else drafts.set(id, joined(drafts.get(id), unsent));
};
/** Take a message that was sent out of the draft of its chat, which was left meanwhile. That of an edit ends the draft. */
export const dropSent = (id, { text, files }, isEdit = false) => {
  const draft = drafts.get(id), paths = files.map(({ path }) => path);
  if (!draft || !(isEdit ? draft.text.endsWith(text) : draft.text.startsWith(text))) return;
  const rest = isEdit ? draft.text.slice(0, -text.length).trimEnd() : draft.text.slice(text.length).trimStart();
  drafts.set(id, { text: rest, files: draft.files.filter(({ path }) => !paths.includes(path)) });
};
const written = JSON.parse(ofTab?.getItem("drafts") ?? "{}");
for (const [id, text] of Object.entries(written)) drafts.set(id, { text, files: [] });
// The files of drafts before the page was loaded. The server can have removed them since.
const awaited = new Map(Object.entries(kept.get("draft-files") ?? {}));
document.addEventListener("own-data-deleted", () => awaited.clear());
const sentPaths = kept.get("sent")?.sent.paths ?? []; // the server removes them when their message is stored
addEventListener("pagehide", () => {
  const { value } = editor;
  drafts.set(shown, joined(value, { text: view.transcript?.unsent() }));
  const isKept = ([id]) => id === shown || !isTemporary(id);
  const texts = [...drafts].map(([id, { text }]) => [id, text]).filter(([, text]) => text);
  ofTab?.setItem("drafts", JSON.stringify(Object.fromEntries(texts.filter(isKept))));
  const all = [...new Set([...drafts.keys(), ...awaited.keys()])]
    .map((id) => [id, [...(drafts.get(id)?.files ?? []), ...(awaited.get(id) ?? [])]]).filter(([, files]) => files.length);
  kept.set("draft-files", Object.fromEntries(all.filter(isKept)));
});
addEventListener("pageshow", ({ persisted }) => persisted && drafts.delete(shown)); // the composer has it
const isThere = ({ url }) => fetch(url, { method: "HEAD" }).then(({ ok }) => ok, () => true); // true without a network
// Attaches the files of the draft that is shown again, and names those that are gone.
const restoreFiles = async () => {
  const id = shown, files = awaited.get(id) ?? [];
  if (!files.length) return;
  const found = await Promise.all(files.map(isThere));
  if (shown !== id || awaited.get(id) !== files) return; // later
  awaited.delete(id);
  const there = files.filter((_, n) => found[n]), lost = files.filter(({ path }, n) => !found[n] && !sentPaths.includes(path));
  if (there.length) composer.add(there);
  const names = lost.map(nameOf).join(", ");
  if (names) hint(said.draft_files_lost.replace("{names}", () => names));
};
const restoreText = () => {
  const text = drafts.get(shown)?.text;
  if (!text || box().value) return;
  drafts.delete(shown);
  write(box(), text);
};
const restoreDraft = () => {
  restoreText();
  restoreFiles();
};
restoreDraft();
makeFoot();
tell();
refresh();

// A temporary chat: its mark, and the requests that keep it on the server while a page shows it.
function keepTemporary() {
  const ASK_MS = 15000;
  let id = "", timer, asking;

  const mark = make("p", { id: "temporary", role: "status" });
  when("#chat", (chat) => chat.before(mark));

  // Says to the server that the chat is still shown. Without a network it is asked again.
  const ask = async () => {
    clearTimeout(timer);
    timer = setTimeout(ask, ASK_MS);
    if (asking) return;
    asking = true;
    const asked = id;
    await request(`/temporary/${asked}`, { method: "POST" }).catch(({ status }) => { // the server may come back
      if (status === 404 && asked === id) endTemporary();
    });
    asking = false;
  };
  const begun = () => id.includes("-"); // its address names it once the server has begun it
  document.addEventListener("visibilitychange", () => document.hidden || !begun() || ask());
  return (shown) => {
    if (shown === id) return;
    if (begun()) request(`/temporary/${id}`, { method: "DELETE" }).catch(() => {}); // its owner can begin another one
    id = isTemporary(shown) ? shown : "";
    document.documentElement.toggleAttribute("data-temporary", Boolean(id));
    const text = id ? said.temporary_mark : "";
    if (mark.textContent !== text) mark.textContent = text;
    clearTimeout(timer);
    if (begun()) ask();
  };
}

// Export and import, at the foot of the list.
function makeFoot() {
  const choose = make("input", { type: "file", accept: ".json,.zip,application/json,application/zip", hidden: true });
  const bring = make("button", { type: "button", class: "import", title: said.import_what }, said.import);
  const every = make("button", { type: "button", class: "export" }, said.export_all);
  const state = make("p", { role: "status" });
  const bar = make("progress", { max: "100", "aria-label": said.importing, hidden: true });
  const twin = space ? [make("a", { href: `https://huggingface.co/spaces/${space}?duplicate=true`, target: "_blank", rel: "noopener" }, said.duplicate)] : [];
  aside.append(make("div", { id: "chats-foot" }, make("div", {}, bring, every), ...twin, bar, state, choose));
  every.addEventListener("click", () => exportChats("", "json"));
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
      if (last?.type === "done") showImported();
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
}
export { act, draw, go, item, list, place, refresh, rows, tellTabs };
/** Save chats as a file. The browser saves the answer while it comes, and shows the progress itself. */
export function exportChats(path, format) {
  const link = make("a", { href: addressOf(`/export${path}`, { format }).href, download: "" });
  document.body.append(link);
  link.click();
  link.remove();
}
