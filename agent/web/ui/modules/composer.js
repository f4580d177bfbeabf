// The message in the composer, the one that waits for an answer, and what comes into the composer beside typed text: files
// that are dropped anywhere on the page, long texts that are pasted, linked images after the visitor agrees, and camera shots.
// Only the server fetches links, and only those that the visitor agreed to.
import { fileAt } from "../composer/composer.js";
import { isSoft } from "../transcript/elements.js";
import { answer, call, write } from "./gradio.js";
import { inTurn, request } from "./network.js";
import { $, box, button, editor, hint, inAddress, joined, kept, late, load, make, nameOf, root, said, shown, when } from "./shared.js";

const CHECK_MS = 500;

export const composer = makeComposer();
export const queue = makeQueue();
placeComposer();
takeDrops();
offerLinks();
offerCamera();
offerVoice();
takeFilms();
openFiles();

/** An uploaded file in the form of the composer's files. */
export const fileOf = (facts) => fileAt(root, facts);

/** A new id of a message. */
export const newId = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

// Empties the composer once its message is stored. What was typed or attached while it was being sent stays.
function makeComposer() {
  let tried = kept.get("sent"); // the id and the content of the last message that was sent, until it is stored
  let sent = tried?.sent; // what is taken away once it is stored
  let undone = kept.get("undone"); // the last message that was taken back
  let isSending = false; // until the server has stored or refused the message
  addEventListener("pagehide", () => {
    kept.set("sent", tried);
    kept.set("undone", undone);
  });
  const messageOf = ({ text, files }) => ({ text, paths: files.map(({ path }) => path) });
  const isSame = (one, other) => JSON.stringify(messageOf(one)) === JSON.stringify(messageOf(other));
  // Returns what is left of a message when another one is taken away from it.
  const without = ({ text, files }, { text: gone, paths }) => ({
    text: text.startsWith(gone) ? text.slice(gone.length).trimStart() : text,
    files: files.filter(({ path }) => !paths.includes(path)),
  });
  // The answer to a message can be lost, for example if the server restarts. Then the stored chat shows it.
  document.addEventListener("chat-view", ({ detail: { turns } }) => {
    if (!tried || !turns?.some(({ id, steered }) => id === tried.id || steered?.includes(tried.id))) return;
    composer.stored();
  });
  // The server checks attachments at once, so that the page shows how they are handled before they are sent. A check that
  // takes long says of which files.
  const checking = make("ul", { role: "status" });
  let slow;
  const end = () => (clearTimeout(slow), checking.replaceChildren());
  document.addEventListener("composer:files", () => {
    end();
    call("attached");
  });
  when("#attached", (notes) => notes.before(make("div", { id: "checking" }, checking)));
  answer("checked", end);
  answer("attached", (_, ...others) => {
    const files = editor.files.value();
    end();
    slow = setTimeout(() => checking.replaceChildren(...files.map((file) => make("li", { class: "doing" }, said.checking.replace("{name}", () => nameOf(file))))), CHECK_MS);
    return [{ text: "", files }, ...others];
  });
  const composer = {
    // Sets what `edit` makes of the message in the composer.
    change: (edit) => void (editor.value = edit(editor.value)),
    // Puts files before those in the composer.
    add: (files) => composer.change((value) => ({ ...value, files: [...files, ...value.files] })),
    // Says that "Undo" has put a message into the composer, and moves the focus there, because its button goes.
    returned: (sentence) => {
      hint(sentence, () => box().value.trim());
      box().focus();
    },
    // Puts a message that was taken back into the composer, before what is there, unless that is a message that was taken
    // back before.
    undone: (value) => composer.change((draft) => {
      const isTyped = (draft.text.trim() || draft.files.length) && !(undone && isSame(draft, undone));
      undone = value;
      setTimeout(() => composer.returned(said.undone));
      return isTyped ? joined(value, draft) : value;
    }),
    // The message that was taken back is shown again. Takes it out of the composer, unless it was changed there.
    redone: () => {
      hint("");
      const mine = undone;
      undone = undefined;
      if (mine && box().value.startsWith(mine.text)) composer.change((value) => without(value, messageOf(mine)));
    },
    // Returns true while the composer still has a message that is on its way, for example at a second Enter.
    isSending: () => isSending && (sent?.text ? box().value.startsWith(sent.text) : !box().value),
    // The message in the composer is being sent.
    sends: () => (isSending = true),
    // Returns the id of a message. The same message that is sent again keeps it, so that the server stores it once.
    idOf: (value) => {
      sent = messageOf(value);
      const content = JSON.stringify([shown.conversation, sent]), isAgain = tried?.content === content;
      if (!isAgain) tried = { content, sent, id: newId() };
      return { id: tried.id, again: isAgain };
    },
    refused: () => {
      isSending = false;
      document.dispatchEvent(new Event("message-kept")); // in the composer
    },
    // The message is stored, and another chat has the composer by now.
    left: () => (sent = undefined),
    // The message is stored. One that had waited in the queue is in the composer no more.
    stored: ({ isQueued = false } = {}) => {
      [isSending, tried] = [false, undefined];
      document.dispatchEvent(new Event("message-stored"));
      const mine = isQueued ? undefined : sent;
      sent = undefined; // once only, because what is typed next can begin with the same words
      if (mine) composer.change((value) => without(value, mine));
    },
  };
  return composer;
}

// One message that waits for the end of the answer, above the composer. It is sent if the answer is complete. Otherwise,
// or if the visitor takes it back, it goes into the composer.
function makeQueue() {
  /** @type {{text: string, chat: string, files: any[], id?: string} | undefined} */
  let queued;
  let isSending = false;
  /** @type {AbortController | undefined} */
  let steering; // takes the message back that was sent to the running answer
  let running = false, complete = false; // of the answer in the chat that is shown
  // The chats that were left with a queued message, which is in their drafts now. Each says so when it is shown again, also
  // after a reload.
  const unsent = new Set(kept.get("unsent"));

  const title = make("p", { id: "queued-title" }), text = make("p", { class: "text", dir: "auto" });
  const files = make("p", { class: "files", dir: "auto" });
  const now = make("button", { type: "button", title: said.queue_now_how }, said.queue_now);
  const back = make("button", { type: "button" }, said.chats_undo);
  const panel = make("section", { id: "queued", "aria-labelledby": "queued-title", hidden: true },
    make("div", {}, title, text, files), now, back);
  const spoken = make("p", { class: "sr-only", role: "status" });
  when("#dock", (dock) => dock.before(panel, spoken));
  // Where Enter begins a new line, a button beside the one that stops the answer lets the message wait.
  const later = make("button", { type: "button", class: "later-button", "aria-label": said.queue_later, title: said.queue_later, hidden: true });
  const offerLater = () => void (later.hidden = !(isSoft() && editor.isRunning() && !queued && (box().value.trim() || editor.files.count())));
  later.addEventListener("click", () => {
    add();
    box().focus();
  });
  const draw = () => {
    offerLater();
    panel.hidden = !queued;
    const state = isSending ? said.queue_sending : steering ? said.queue_steering : said.queued;
    const told = queued && !isSending ? state : "";
    if (spoken.textContent !== told) spoken.textContent = told;
    if (!queued) return;
    title.textContent = state;
    text.textContent = queued.text.trim();
    files.textContent = queued.files.map(nameOf).join(", ");
    back.hidden = isSending;
    now.hidden = Boolean(isSending || steering || queued.files.length || !shown.turns.at(-1)?.can_steer);
  };

  const add = () => {
    if (composer.isSending()) return;
    if (queued) return hint(said.queue_full, () => Boolean(queued));
    if (editor.isRecording() || editor.files.isUploading()) return hint(said.still_writing, editor.isRunning);
    queued = { ...editor.value, chat: shown.conversation };
    composer.change(() => ({ text: "", files: [] }));
    settle();
  };
  // Says once how a message can wait, because the button stops the answer meanwhile.
  let isExplained = false;
  document.addEventListener("input", ({ target, isTrusted }) => {
    if (target === box()) offerLater();
    if (isSoft()) return;
    const canWait = () => Boolean(editor.isRunning() && !queued && box().value.trim() && !$("#offline")?.textContent);
    if (isExplained || !isTrusted || target !== box() || !canWait()) return;
    isExplained = true;
    hint(said.queue_how, canWait);
  }, true);
  // Says that a message with this text was not sent, until the next one is sent or the composer no longer has the text.
  let sent = 0;
  document.addEventListener("message-sent", () => (sent += 1));
  const hintUnsent = (text = "") => {
    const before = sent;
    hint(said.queue_unsent, () => sent === before && box().value.includes(text.trim()));
  };
  // Puts the message into the composer, before what was written there meanwhile. Returns its text.
  const takeBack = () => {
    if (!queued) return undefined;
    const { text, files } = queued;
    stopSteering();
    [queued, isSending] = [undefined, false];
    draw();
    if (text.trim()) write(box(), joined({ text }, { text: box().value }).text);
    if (files.length) composer.add(files);
    return text;
  };
  now.addEventListener("click", () => {
    const { signal } = (steering = new AbortController());
    queued.id = composer.idOf(queued).id;
    back.focus();
    draw();
    document.dispatchEvent(new CustomEvent("queue-steers", { detail: { ...queued, signal } }));
  });
  const stopSteering = () => (steering?.abort(), (steering = undefined));
  back.addEventListener("click", () => {
    takeBack();
    composer.returned(said.queue_returned);
  });
  const leave = () => {
    const mine = queued;
    stopSteering();
    [queued, isSending] = [undefined, false];
    if (mine) unsent.add(mine.chat);
    draw();
    return mine;
  };
  const send = () => {
    isSending = true;
    draw();
    document.dispatchEvent(new CustomEvent("queue-sends", { detail: queued }));
  };
  // Decides what becomes of the message as soon as the answer has ended and the page shows its end.
  const settle = () => {
    draw();
    if (!queued || isSending || steering || running || editor.isRunning()) return;
    if ($(":root[data-running]") || $("#sending p")) return;
    if (complete && !$("#offline")?.textContent) return send();
    hintUnsent(takeBack());
  };

  document.addEventListener("chat-view", ({ detail }) => {
    if (queued?.id && detail.turns?.some(({ steered }) => steered?.includes(queued?.id))) { // the answer to its request was lost
      stopSteering();
      queued = undefined;
    }
    if (queued && !queued.chat) queued.chat = detail.conversation; // a new chat gets its id after its first message is stored
    if (queued && !isSending && detail.conversation !== queued.chat) takeBack(); // a copy of the chat, or none
    [running, complete] = [Boolean(detail.live), detail.complete];
    setTimeout(settle);
  });
  editor.place("later", later);
  for (const kind of ["composer:running", "composer:files"]) document.addEventListener(kind, settle);
  when("#sending", (panel) => new MutationObserver(settle).observe(panel, { childList: true, subtree: true }));
  new MutationObserver(settle).observe(document.documentElement, { attributeFilter: ["data-running"] });
  addEventListener("pagehide", () => { // before chats.js keeps the draft
    const marked = [...unsent];
    if (queued?.text.trim() && !isSending) {
      marked.push(queued.chat);
      hintUnsent(queued.text); // for a browser that keeps the page and shows it again
    }
    takeBack();
    kept.set("unsent", marked);
  });

  return {
    add,
    // The message was sent: the server has stored it, or not.
    sent: (isStored) => {
      if (!isSending) return;
      if (!isStored) return void takeBack();
      [queued, isSending] = [undefined, false];
      draw();
    },
    // The model has got the message, or the answer has ended before.
    steered: (isStored) => {
      steering = undefined;
      if (isStored) {
        queued = undefined;
        composer.stored({ isQueued: true });
        box().focus();
      }
      settle();
    },
    // The message was refused after its chat was left, whose draft has it now.
    left: () => leave(),
    // Whether a message waits, so that a later one must not overtake it.
    waits: () => Boolean(queued),
    // A chat is shown again, which may have been left with a queued message.
    returned: (id) => unsent.delete(id) && hintUnsent(),
    // Gets the composer's value when another chat is opened, and returns the draft of the chat that is left.
    keep: (value) => {
      if (!queued || isSending) return value;
      return { ...value, ...joined(leave(), value) };
    },
  };
}

// The page of an empty chat: its composer stands in the middle, and the examples below it. Says for the style whether the
// chat is empty.
function placeComposer() {
  const { dataset } = document.documentElement;
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const place = () => $("#dock")?.getBoundingClientRect().top;
  const turn = (state) => {
    if (dataset.chat === state) return;
    const before = dataset.chat === "empty" && !still.matches ? place() : undefined;
    dataset.chat = state;
    const by = before - place();
    if (by) $("#dock").animate([{ transform: `translateY(${by}px)` }, { transform: "none" }], { duration: 220, easing: "ease-out" });
  };
  if (inAddress()) turn("begun"); // most likely, and then nothing moves
  document.addEventListener("chat-none", () => dataset.chat ?? turn("empty"));
  document.addEventListener("chat-view", ({ detail: { turns, live, missing } }) => {
    if (turns?.length || live) turn("begun");
    else if (turns || missing) turn("empty");
  });

  // A hint lies above the composer. The greeting makes room for it, and so does a chat whose last buttons it would cover.
  when("#hint", (note) => new ResizeObserver(() => {
    const { style } = $("#page"), room = note.offsetHeight && `${note.offsetHeight + 8}px`;
    if (room) style.setProperty("--hint-room", room);
    else style.removeProperty("--hint-room");
  }).observe(note));
}

// The dialogs of files, which are loaded when they are opened.
const loaded = (then) => load("attachments").then(then, () => hint(said.chats_failed));

function takeDrops() {
  // Drops. The window handles them before the browser, which would navigate to the dropped file or link.
  // It lies above an open dialog too, and takes the drop: an element that is redrawn then loses it.
  const overlay = make("div", { id: "drop", popover: "manual" }, said.drop);
  document.body.append(overlay);
  let hiding, ours = false;
  const hide = () => {
    clearTimeout(hiding);
    if (overlay.matches(":popover-open")) overlay.hidePopover();
  };
  const show = () => {
    if (!overlay.matches(":popover-open")) overlay.showPopover();
    clearTimeout(hiding);
    hiding = setTimeout(hide, 1000); // a continuing drag fires several times a second
  };
  const takesText = (target) => {
    const field = target.closest?.("textarea, input:not([type]), input:is([type=text], [type=password], [type=number])");
    return field && !field.readOnly && !field.disabled;
  };
  const brings = ({ dataTransfer }) => !ours && dataTransfer?.types.includes("Files");
  const over = (event) => {
    const files = brings(event);
    event.stopPropagation();
    if (!files && takesText(event.target)) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = files ? "copy" : "none";
    if (files) show();
  };
  const drop = (event) => {
    hide();
    const files = brings(event);
    event.stopPropagation();
    if (!files && takesText(event.target)) return;
    event.preventDefault();
    if (!files) return;
    const items = [...event.dataTransfer.items].filter((item) => item.kind === "file");
    const folders = new Set(items.flatMap((item, at) => (item.webkitGetAsEntry()?.isDirectory ? [at] : [])));
    const dropped = [...event.dataTransfer.files].filter((_, at) => !folders.has(at));
    const isReadOnly = () => box().readOnly;
    if (isReadOnly()) hint(said.drop_later, isReadOnly);
    else if (!editor.attach(dropped) || folders.size) hint(said.drop_folder);
  };
  for (const kind of ["dragenter", "dragover"]) window.addEventListener(kind, over, true);
  window.addEventListener("drop", drop, true);
  window.addEventListener("dragleave", (event) => event.relatedTarget ?? hide(), true);
  window.addEventListener("dragstart", () => (ours = true), true);
  window.addEventListener("dragend", () => (ours = false), true);
}

function offerLinks() {
  // Links. The map holds the state of each link in the box by its text. One link is fetched at a time.
  const links = new Map();
  let fetching; // the state of the link whose picture is being fetched
  let pasted = "", drawn = "";
  const kinds = "png|jpe?g|gif|webp|avif|hei[cf]";
  const inPath = new RegExp(`\\.(${kinds})(?![a-z0-9])`, "i");
  const inQuery = new RegExp(`\\.(${kinds})$`, "i");
  const asFormat = new RegExp(`^(${kinds})$`, "i");
  const picture = (text) => {
    if (!/^https?:\/\/\S+$/i.test(text) || !URL.canParse(text)) return;
    const url = new URL(text); // its host is as it will be requested: in Punycode, numbers as an address
    url.username = url.password = url.hash = "";
    const named = inPath.test(url.pathname) || [...url.searchParams].some(([name, value]) =>
      inQuery.test(value) || (/^(format|fm|ext)$/i.test(name) && asFormat.test(value)));
    return named ? url : undefined;
  };
  const set = (one, state, problem = "") => {
    one.leave?.abort(); // what is being fetched
    Object.assign(one, { state, problem });
    draw();
    next();
  };
  // Adds the fetched file to the composer, unless it is no longer wanted.
  const next = async () => {
    const [link, one] = [...links].find(([, each]) => each.state === "fetching") ?? [];
    if (fetching || !one) return;
    fetching = one;
    const { signal } = (one.leave = new AbortController());
    try {
      const found = await inTurn(false, () => request("/pictures", { method: "POST", body: { url: one.url.href }, signal }));
      if (!signal.aborted) {
        links.delete(link);
        composer.change(({ text, files }) => ({ text: without(text, link), files: [...files, fileOf(found)] }));
      }
    } catch ({ message }) {
      if (!signal.aborted) Object.assign(one, { state: "failed", problem: message });
    }
    fetching = one.leave = undefined;
    draw();
    next();
  };
  const without = (text, link) => {
    const at = text.indexOf(link);
    if (at < 0) return text;
    const before = text.slice(0, at), after = text.slice(at + link.length);
    return /(^|\s)$/.test(before) ? before + after.replace(/^[^\S\n]/, "") : before + after;
  };
  const look = () => {
    const text = box()?.value ?? "", all = new Set(text.split(/\s+/));
    const there = (link, one) => (one.pasted ? text.includes(link) : all.has(link));
    for (const [link, one] of links) {
      if (there(link, one)) continue;
      links.delete(link);
      set(one, "gone");
    }
    for (const link of [pasted, text.trim()]) {
      const url = picture(link), one = { url, state: "asking", pasted: link === pasted };
      if (url && there(link, one) && !links.has(link)) links.set(link, one);
    }
    pasted = "";
    draw();
  };
  const draw = () => {
    const shown = [...links.values()].filter((one) => ["asking", "fetching", "failed"].includes(one.state));
    const now = JSON.stringify(shown.map((one) => [one.url, one.state, one.problem]));
    if (now === drawn || !$("#links ul")) return;
    drawn = now;
    $("#links ul").replaceChildren(...shown.map(row));
  };
  const row = (one) => {
    const [before, after] = { asking: said.link_ask, fetching: said.link_fetching }[one.state]?.split("{host}") ?? [];
    const text = after === undefined ? [`${said.link_failed} ${one.problem}`] : [before, make("b", {}, one.url.host), after];
    const go = button("", one.state === "failed" ? said.link_again : said.link_attach, () => {
      set(one, "fetching");
      box()?.focus();
    });
    const leave = button("", said.link_leave, () => {
      set(one, "left");
      box()?.focus();
    });
    return make("li", { class: one.state === "failed" ? "refused" : one.state }, make("span", {}, ...text), ...(one.state === "fetching" ? [] : [go]), leave);
  };
  document.addEventListener("paste", (event) => {
    if (event.target !== box() || event.clipboardData?.files.length) return;
    pasted = event.clipboardData?.getData("text").trim() ?? "";
  }, true);
  document.addEventListener("input", (event) => event.target === box() && look());
  document.addEventListener("composer:changed", look);
  look();
}

function offerCamera() {
  const opener = button("camera-button", "", () => loaded((module) => module.openCamera()));
  opener.title = said.camera;
  opener.setAttribute("aria-label", said.camera);
  // What the chosen model takes, or what can be extracted for it.
  const offer = () => {
    const { takes = "", accept = "" } = $("#about [data-takes]")?.dataset ?? {};
    editor.picker.accept = accept && `${accept},video/*`;
    editor.offerMicrophone(takes.includes("audio"));
    if (!takes.includes("image") || !navigator.mediaDevices?.getUserMedia) opener.remove();
    else if (!opener.isConnected) editor.place("camera", opener);
  };
  when("#about", (about) => {
    new MutationObserver(offer).observe(about, { childList: true, subtree: true, attributeFilter: ["data-takes"] });
    offer();
  });
}

// Dictation, and a button for a conversation without hands.
function offerVoice() {
  const use = (then, file) => load("voice").then(then, () => {
    hint(said.chats_failed);
    if (file) editor.files.attach([file], true); // it is not lost
  });
  document.addEventListener("composer:dictate", ({ detail: { file } }) => use((voice) => voice.dictate(file), file));
  if (!navigator.mediaDevices?.getUserMedia || !window.AudioWorkletNode) return;
  const opener = button("voice-button", "", () => use((voice) => voice.converse()));
  opener.title = said.hands_free;
  opener.setAttribute("aria-label", said.hands_free);
  editor.place("voice", opener);
}

// A model gets a video as a whole, or as pictures with their times and its sound. film.js makes them, in the browser.
function takeFilms() {
  document.addEventListener("composer:attach", (event) => {
    const about = { ...$("#about [data-takes]")?.dataset }, { files } = event.detail;
    const films = files.filter(({ type }) => type.startsWith("video/"));
    if (!films.length || !(about.takes || about.video)) return; // the server says why
    event.preventDefault();
    const rest = files.filter((one) => !films.includes(one));
    if (rest.length) editor.attach(rest);
    const film = late("film");
    film.catch(() => hint(said.chats_failed));
    for (const one of films) editor.files.expect(one.name, film.then(({ partsOf }) => partsOf(one, about)));
  });
}

// Attached files: a long text that is pasted becomes one, and a click opens a picture, or a text to be edited.
function openFiles() {
  const LONGEST = 4000; // characters of a pasted text that stays in the box

  let last = 0; // the number of the newest pasted text
  const nextName = () => {
    const names = editor.files.names();
    if (!names.length) last = 0;
    const name = `${said.pasted_text.replace("{number}", `${++last}`)}.txt`;
    return names.includes(name) ? nextName() : name;
  };
  window.addEventListener("paste", (event) => {
    const text = event.clipboardData?.getData("text") ?? "";
    if (event.target !== box() || text.length <= LONGEST) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    if (box().readOnly) return hint(said.chats_sending, () => box().readOnly);
    editor.attach([new File([text], nextName(), { type: "text/plain" })]);
  }, true);
  document.addEventListener("composer:open", async ({ detail: { file, item, isPicture } }) => {
    if (!isPicture) return box().readOnly || loaded((module) => module.openText(file));
    const viewer = await load("viewer").catch(() => hint(said.chats_failed));
    const remove = (address) => composer.change(({ text, files }) => ({ text, files: files.filter(({ url }) => url !== address) }));
    viewer?.pictures([...document.querySelectorAll("#composer .open-picture img")], $("img", item), remove);
  });
}
