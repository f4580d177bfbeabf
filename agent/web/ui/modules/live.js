// Shows the conversation: the stored turns, and the one whose answer is being written, of which it gets edits. The
// modules in `transcript` draw them.
import { mount } from "../transcript/transcript.js";
import { announceEnd, dropSent, keepDraft, showCopy } from "./chats.js";
import { composer, fileOf, newId, queue } from "./composer.js";
import { answer, call } from "./gradio.js";
import { ask, inTurn, post, reached, request, stream } from "./network.js";
import { $, TEMPORARY, box, button, diagrams, editor, frame, hint, inAddress, isTemporary, joined, language, load, make, ofAll, panel, python, rates, said, shown, when } from "./shared.js";

const REFRESH_MS = 5000, RETRY_MS = 1000, TRIES = 20, WINDOW = 30, REFUSAL_S = 10, REFUSED_S = 20, LANE_FRAMES = 120;

// What the address asks for: a text in the composer of a new chat, which is never sent by itself, and a model.
const given = new URLSearchParams(inAddress() ? "" : location.search), MOST_PROMPT = 20_000, MOST_NAME = 200;
const wish = { prompt: given.get("prompt")?.slice(0, MOST_PROMPT) ?? "", model: given.get("model")?.trim().slice(0, MOST_NAME) ?? "" };

let stored = []; // the stored turns, without the one that is being written
let written; // that turn
let upcoming; // the stored turns, while those before are shown until the first frame of an answer that is written again
let transcript; // what draws the turns, once its place is there
let wanted = inAddress() || (history.state?.isNew || wish.prompt || wish.model ? "" : undefined); // the chat to show; undefined: the server says which
let isAsked = false; // this page asked for the answer that begins next
let refreshing;
let over = ""; // the URL of the answer whose end was read last
let isWhole = false; // the page has the first turn of the chat
let hasEarlier = false; // the server has turns before those that it has sent last
let confirmed; // the answer after whose beginning the server was asked for a view

const turns = () => (written ? [...stored, written] : stored);
const lastMessage = () => turns().findLast(({ bubbles }) => bubbles[0]?.kind === "user")?.id ?? "";
const draw = (isNew = false) => {
  shown.turns = turns();
  const { dataset } = document.documentElement;
  if (written) dataset.running = "";
  else delete dataset.running;
  transcript?.show(shown.turns, { hasEarlier: hasEarlier && !isWhole, isNew });
};
const drawEdits = (edits) => {
  written = transcript.apply(edits, written.id);
  shown.turns = turns();
};
// Reads an answer. The server sends about eight frames of it a second, and each is drawn at once.
const follow = async (url, isMine) => {
  await mounted;
  if (!stream.reads(url)) return; // another chat was opened meanwhile
  let isNew = isMine;
  const before = shown.conversation, end = await stream.read((frames) => {
    for (const { turn, edits = [] } of frames) {
      if (turn) {
        [written, stored, upcoming] = [turn, upcoming ?? stored.filter(({ id }) => id !== turn.id), undefined];
        draw(isNew);
        isNew = false;
      } else if (written) drawEdits(edits);
    }
  });
  if (!end) return;
  over = url;
  if (end.goes_on) return finishLost(end.goes_on);
  announceEnd(written?.buttons?.some(({ value }) => value.do === "answer"));
  const isLast = shown.conversation === before && !stream.reading(), lacks = !isWhole && !hasEarlier;
  if (end.stored && isLast && written && !lacks && before === wanted) settle(end.complete);
  else refresh();
};
// Asks for the rest of an answer whose process was lost, again as long as no process can begin it. Another page may have
// asked already, and then this is refused.
const finishLost = async (run) => {
  const id = shown.conversation, path = `/${id}${about(lastMessage())}/continue`;
  for (let left = TRIES; left && shown.conversation === id; left--) {
    const failure = await ask(path, { method: "POST", body: { run } }).then(() => null, (error) => error);
    if (!failure || failure.status < 500) break;
    await new Promise((then) => setTimeout(then, RETRY_MS));
  }
  if (shown.conversation === id) refresh();
};
// The page shows the turn as it is stored. Another message can be sent, and nothing has to be asked for.
const settle = (complete) => {
  clearTimeout(refreshing);
  [stored, written] = [[...stored, written], undefined];
  draw();
  stream.watch(false);
  editor.running(false);
  tell({ conversation: shown.conversation, turns: shown.turns, live: "", complete, missing: "", hidden: "" });
};
const tell = (detail) => document.dispatchEvent(new CustomEvent("chat-view", { detail }));
// Asks for the chat until the page has it.
const refresh = () => {
  clearTimeout(refreshing);
  refreshing = setTimeout(refresh, REFRESH_MS);
  stream.watch(true);
  read();
};
// Drops the oldest turns if there are many more bubbles than the visitor has asked for.
let most = WINDOW;
const bubblesOf = (all) => all.reduce((sum, { bubbles }) => sum + bubbles.length, 0);
const newest = (all) => {
  let count = bubblesOf(all), first = 0;
  if (count > 2 * most) while (count > most && first < all.length - 1) count -= all[first++].bubbles.length;
  return first ? all.slice(first) : all;
};
// The turns, after the older ones that the page has. A message has the same ones before it as long as it has its id.
const withOlder = (given, all) => {
  const first = all.findIndex(({ id }) => id === given[0]?.id);
  return first > 0 ? [...all.slice(0, first), ...given] : given;
};

// Asks for the turns before the first one, once for each first one.
let asked = "";
const earlier = async ({ isClicked = false } = {}) => {
  const id = shown.conversation, first = stored[0]?.id;
  if (!first || !hasEarlier || isWhole || (asked === first && !isClicked)) return;
  asked = first;
  const older = await ask(`/${id}?format=blocks&before=${first}&bubbles=${Math.max(WINDOW, bubblesOf(stored))}`).catch(({ message }) => void hint(message));
  if (!older || shown.conversation !== id || stored[0]?.id !== first) return;
  stored = [...older.turns, ...stored];
  hasEarlier = older.has_earlier;
  isWhole = !hasEarlier;
  most = Math.max(most, bubblesOf(stored));
  draw();
};

// Views can overtake each other. An old view names an answer whose end was read, or does not name the one that is being
// read. It is not shown, and the server is asked again.
const isOld = ({ live, turns: given, conversation: id }) => {
  const reads = stream.reading();
  if (id !== shown.conversation) return false;
  return live ? live === over : Boolean(given && reads && reads !== confirmed);
};

// Says why there is no view of the server, until there is one.
let problem = "";
const say = (text) => {
  if (text !== problem || $("#hint")?.textContent !== text) hint(text, () => problem === text, Infinity);
  problem = text;
};
// Shows a view of the server. Without turns, the view adds a turn to what is shown.
const show = (view) => {
  clearTimeout(refreshing);
  problem = "";
  if (isOld(view)) {
    const reads = stream.reading();
    refreshing = setTimeout(() => {
      confirmed = reads;
      refresh();
    }, RETRY_MS);
    return;
  }
  stream.watch(false);
  editor.running(Boolean(view.live));
  const { turns: given, live, conversation: id, missing } = view;
  const isNext = id !== shown.conversation, before = isNext ? [] : turns();
  const left = shown.conversation, unsent = isNext && transcript?.leave();
  if (isNext) [asked, most] = ["", WINDOW];
  shown.conversation = id;
  tell(view);
  if (unsent) keepDraft(left, { text: unsent });
  if (missing && !given) return; // the page is empty already
  const same = stream.reads(live);
  if (!same) stream.turnTo(live);
  if (!same || !live) written = undefined;
  upcoming = undefined;
  if (!given) stored = newest(before.filter((turn) => turn !== written));
  else {
    const all = withOlder(given, before);
    hasEarlier = view.earlier;
    isWhole = !hasEarlier || (all.length > given.length && isWhole);
    // The turn that is written again stays until its first frame is there.
    const isAgain = live && !same && before.length > all.length;
    if (isAgain && before[all.length - 1]?.id === all.at(-1)?.id) [stored, upcoming] = [before.slice(0, all.length + 1), all];
    else stored = all;
  }
  if (!given && isNext) [isWhole, hasEarlier] = [true, false];
  if (!given && stored.length && before.length && stored[0] !== before[0]) [isWhole, hasEarlier] = [false, true];
  const isOpened = given && isNext, begins = live && !same, isMine = isAsked && !isOpened;
  if (isOpened || begins) isAsked = false;
  draw();
  if (isOpened || (begins && isMine)) transcript?.toEnd();
  if (begins) follow(live, isMine);
  if (begins && isMine && (ofAll?.getItem("aloud") || $("#about [data-speaks]")) && !$("#voice:not([hidden])[data-mode=thinking]")) speak("", live);
};

// Reads an answer aloud.
const speak = (turn, url = "") => load("voice").then((voice) => voice.read(turn, url), () => hint(said.chats_failed));

// The settings that the page shows, in the form of the routes.
const settings = () => {
  const values = panel.values();
  if (values.system_message === undefined) return {}; // those that the server remembers
  return { ...values, model: shown.model ?? "", reasoning: values.reasoning && (shown.effort || true) };
};
// Asks a route about the chat that is shown, and shows what has become of it. Returns its answer, or undefined if it was
// refused: then its sentence says why.
const pending = new Set();
const refused = ({ message }) => hint(message, undefined, REFUSAL_S);
/** @param {string} path @param {{method?: string, body?: any, isAnswered?: boolean, stays?: boolean, fails?: (error: any) => void}} [how] */
const act = async (path, { method = "POST", body, isAnswered = false, stays = true, fails = refused } = {}) => {
  const id = shown.conversation;
  const key = `${id}${path} ${body?.run ?? ""}`;
  if (pending.has(key)) return undefined; // a double click
  pending.add(key);
  if (isAnswered) {
    isAsked = true;
    stream.watch(true);
  }
  const answer = await ask(`/${id}${path}`, { method, body }).catch((error) => void fails(error));
  pending.delete(key);
  if (shown.conversation === id && (stays || !answer)) refresh();
  return answer;
};
const about = (id) => `/messages/${encodeURIComponent(id)}`;
const answered = (path, body, method) => act(path, { method, body: { settings: settings(), ...body }, isAnswered: true });
const actions = {
  retry: (id) => answered(`${about(id)}/retry`),
  // The composer keeps its own model, and what it shows of that one need not be what the visitor has set.
  retryWith: (id, model) => answered(`${about(id)}/retry`, { settings: { model, system_message: settings().system_message } }),
  version: (id) => act(`${about(id)}/show`),
  // The column may be of another turn then, drawn anew: its button has gone with the focus.
  goOn: async (id) => {
    const detail = shown.turns.flatMap(({ columns }) => columns ?? []).find((one) => one.id === `answer-${id}`);
    if (!await actions.version(id)) return;
    document.dispatchEvent(new CustomEvent("compare-over", { detail }));
    for (let left = LANE_FRAMES; left; left--) {
      const lane = $(`#chat [data-turn="${CSS.escape(id)}"] .lane[data-chosen]`);
      if (lane) return void (document.activeElement === document.body && lane.focus({ preventScroll: true }));
      await frame();
    }
  },
  choose: async ({ do: kind, entry, run, call, text, choice }) => {
    if (kind === "retry") return actions.retry(entry);
    if (kind === "stop") return act("/stop", { body: { run }, stays: false });
    if (kind === "show") return actions.goOn(entry);
    if (kind === "vote") return act(`${about(entry)}/vote`, { body: { choice } });
    if (kind === "answer") return answered("/messages", { text, question: { run, call } });
    const answer = await answered(`${about(entry)}/continue`);
    if (answer?.asked) hint(said.continued.replace("{model}", () => $("#model-button")?.textContent.trim()));
  },
  edit: async (id, text) => {
    const chat = shown.conversation, isAccepted = Boolean(await answered(about(id), { text }, "PATCH"));
    if (isAccepted && shown.conversation !== chat) return dropSent(chat, { text, files: [] }, true); // it was left meanwhile, and has what was typed as its draft
    transcript?.edited(isAccepted);
    if (isAccepted) box()?.focus();
  },
  undo: async (id) => {
    const chat = shown.conversation, value = await act(about(id), { method: "DELETE" });
    if (!value) return;
    const message = { text: value.text, files: value.files.map(fileOf) };
    chat === shown.conversation ? composer.undone(message) : keepDraft(chat, message);
  },
  erase: async (id) => {
    const order = await load("order").catch(() => hint(said.chats_failed)), turn = shown.turns.find((one) => one.id === id);
    if (turn) order?.erase(turn, async () => {
      const isErased = await act(`/branches/${encodeURIComponent(id)}`, { method: "DELETE" });
      if (isErased) document.dispatchEvent(new Event("chat-changed"));
      return isErased;
    });
  },
  rate: async (id, isGood) => {
    const order = await load("order").catch(() => hint(said.chats_failed));
    order?.rate(isGood, (rating) => ask(`/${shown.conversation}${about(id)}/rating`, { method: "POST", body: { good: isGood, ...rating } }));
  },
  rewrite: async (id) => {
    const chat = shown.conversation, given = Promise.all([load("order"), textOf(id)]);
    const [order, text] = await given.catch((error) => void hint(error.status ? error.message : said.chats_failed)) ?? [];
    if (chat === shown.conversation) order?.rewrite(text, (written, fails) => act(`${about(id)}/answer`, { body: { text: written }, fails }));
  },
  picture: async (id) => (await load("picture").catch(() => hint(said.chats_failed)))?.share(id),
  branch: async (id) => {
    const chat = shown.conversation, copy = await act(`${about(id)}/copy`, { stays: false });
    if (copy && chat === shown.conversation) showCopy(copy.conversation);
    else if (copy) document.dispatchEvent(new Event("chat-changed")); // the list has it
  },
};
// The text of a message or an answer, as it was written.
const textOf = async (id, part = "answer") => (await ask(`/${shown.conversation}${about(id)}/text`))[part];
// The blocks of a text in Markdown, as an answer would show them.
const render = async (text) => (await request("/markdown", { method: "POST", body: { text } })).blocks;
export const live = { show, earlier, actions, lastMessage, measure: () => {} };

// Reads the chat that the page is to show, or the one with which the visitor goes on, and shows it.
const liveOf = (run) => (run ? `runs/${run}/events?format=blocks${shown.guest && `&guest=${encodeURIComponent(shown.guest)}`}` : "");
const none = { turns: [], conversation: "", live: "", complete: false, earlier: false, hidden: "", missing: "" };
let reads = 0, seen; // what the reads are counted by, and what to call once it is known which chat is shown
const known = new Promise((then) => (seen = then));
const read = async ({ isOfTimer = true } = {}) => {
  const id = wanted, mine = ++reads, isLate = () => mine !== reads || id !== wanted;
  if (id === "" || id === TEMPORARY) {
    await undefined; // chats.js puts the draft of the chat that is left away first
    if (!isLate()) live.show({ ...none, conversation: id });
    return seen();
  }
  const path = id === undefined ? `current?format=blocks&viewed=${encodeURIComponent(ofAll?.getItem("viewed") ?? "")}` : `${id}?format=blocks`;
  try {
    const { id: found, run, turns, has_earlier: earlier, is_complete: complete, hidden } = await inTurn(isOfTimer, () => request(`/conversations/${path}`));
    if (isLate()) return;
    wanted = found ?? ""; // a visitor without a chat to go on with
    live.show(found ? { ...none, turns, conversation: found, live: liveOf(run), complete, earlier, hidden } : none);
  } catch ({ status, message }) {
    if (isLate()) return;
    if (status === 401 && !shown.guest) { // a guest, whose token comes with the settings
      clearTimeout(refreshing);
      refreshing = setTimeout(() => say(said.chats_failed), REFRESH_MS);
      return;
    }
    if (status === 404 && id === shown.conversation && !isTemporary(id)) document.dispatchEvent(new Event("chat-lost"));
    else if (status === 404) {
      wanted = "";
      live.show({ ...none, missing: id && (isTemporary(id) ? said.temporary_over : said.missing) });
    } else {
      document.dispatchEvent(new Event("chat-none"));
      if (status === 503) call("look");
      else if (status) say(message);
      clearTimeout(refreshing);
      refreshing = setTimeout(refresh, REFRESH_MS);
    }
  }
  seen();
};
document.addEventListener("chat-wanted", ({ detail }) => {
  wanted = detail;
  read({ isOfTimer: false });
});
answer("loaded", ({ guest }) => {
  if (!guest) return;
  shown.guest = guest;
  read();
});

// Sends a message to the chat that is shown. Returns whether it is stored. If the network breaks off, the message is sent
// again with its id once the server answers, because it can be stored already. The visitor can stop that.
let sending; // gives up what is being sent
const deliver = async (chat, body, how, tries = TRIES) => {
  const isNew = !chat || chat === TEMPORARY;
  try {
    return await post(isNew ? "/conversations" : `/conversations/${chat}/messages`, { ...body, ...(chat === TEMPORARY ? { temporary: true } : isNew && shown.into) }, how);
  } catch (error) {
    if (how.signal.aborted || (error.status && error.status !== 404)) throw error;
    if (error.status) {
      const isGone = !isNew && !isTemporary(chat) && (await request(`/conversations/${chat}`).catch(({ status }) => status)) === 404;
      if (!isGone) throw error;
      return deliver("", body, how, tries); // it was deleted meanwhile
    }
    if (!tries) throw error;
    how.progress({ text: said.queue_sending, can_stop: true });
    const given = new Promise((then) => how.signal.addEventListener("abort", then, { once: true })); // the visitor has stopped it
    await Promise.race([new Promise((then) => setTimeout(then, RETRY_MS)), given]);
    if (!how.signal.aborted) await Promise.race([reached(), given]);
    how.signal.throwIfAborted();
    return deliver(chat, { ...body, again: true }, how, tries - 1);
  }
};
/** @param {any} message @param {{id: string, again: boolean}} sent @param {any} [changed] settings of this message alone */
const send = async ({ text, files }, { id, again }, changed) => {
  const control = (sending = new AbortController()), { signal } = control;
  document.dispatchEvent(new Event("message-sent"));
  isAsked = true;
  stream.watch(true);
  try {
    await known;
    const chat = wanted, body = { text, files: files.map(({ path }) => path), settings: { ...settings(), ...changed }, remember: true, id, again, ...shown.compare?.() };
    const progress = (line) => sayProgress({ ...line, can_stop: line.can_stop && wanted === chat });
    const { conversation, run } = await deliver(chat ?? "", body, { signal, progress });
    const isHere = wanted === chat || wanted === conversation || (chat === undefined && wanted === "");
    if (!isHere) { // another one was opened meanwhile, and has the composer
      dropSent(chat ?? "", { text, files });
      composer.left();
      refresh();
      return true;
    }
    wanted = conversation;
    if (run) live.show({ ...none, turns: undefined, conversation, live: liveOf(run) });
    else refresh();
    return true;
  } catch (error) {
    if (!signal.aborted) refuse(error);
    refresh();
    return false;
  } finally {
    sending = undefined;
    sayProgress({ text: "" });
  }
};
document.addEventListener("composer:send", async ({ detail: value }) => {
  if (queue.waits()) return queue.add(); // it must not overtake the other one
  if (sending) return void hint(said.chats_sending, () => sending);
  composer.sends();
  if (await send(value, composer.idOf(value))) composer.stored();
  else composer.refused();
});
document.addEventListener("queue-sends", async ({ detail: message }) => {
  const isStored = await send(message, composer.idOf(message));
  if (isStored) composer.stored({ isQueued: true });
  if (isStored || message.chat === (wanted ?? "")) return queue.sent(isStored);
  queue.left(); // another chat was opened meanwhile, and has the composer
  keepDraft(message.chat, message);
});
document.addEventListener("queue-steers", async ({ detail: { chat, signal, text, id } }) => {
  const body = { text, id };
  const answer = await request(`/conversations/${chat}/steer`, { method: "POST", body, signal }).catch((error) => void (signal.aborted || refuse(error)));
  if (!signal.aborted) queue.steered(Boolean(answer?.steered));
});
document.addEventListener("composer:later", () => box().readOnly || queue.add());
document.addEventListener("composer:stop", () => {
  if (sending) sending.abort();
  else act("/stop", { stays: false });
});
const sayProgress = ({ text, done = null, can_stop: canStop = false }) => {
  const panel = $("#sending div"), bar = Number.isFinite(done) ? make("progress", { max: "1", value: `${done}` }) : "";
  if (canStop) editor.running(true);
  box().readOnly = Boolean(text); // what is being sent must not change
  const line = $("p", panel);
  const before = $("progress", panel);
  if (!text) line?.remove();
  else if (!line) panel.append(make("p", { class: "doing", role: "status" }, text, " ", bar));
  else if (before && bar && line.textContent.trim() === text.trim()) before.value = done;
  else if (line.textContent.trim() !== text.trim() || Boolean(before) !== Boolean(bar)) line.replaceChildren(text, " ", bar);
};
// Says why a message was not sent, until that has changed. The notes on the attached files can say it already.
let changes = 0;
for (const kind of ["chat-opening", "message-sent"]) document.addEventListener(kind, () => changes++);
document.addEventListener("gradio-call", ({ detail }) => detail === "pick" && changes++); // another model
const plain = (text) => text.replace(/\s+/g, " ").trim();
const refuse = ({ message, status }) => {
  if (status === 503) call("look");
  document.dispatchEvent(new Event("message-refused"));
  const notes = () => [...document.querySelectorAll("#attached li.refused span")].map((note) => plain(note.textContent));
  const isRepeated = notes().length > 0 && !plain(notes().reduce((rest, note) => rest.replace(note, ""), plain(message)));
  const before = changes;
  hint(isRepeated ? said.not_sent : message, () => changes === before && !(isRepeated && !notes().length), REFUSED_S);
};

const mounted = new Promise((done) => when("#chat", (element) => {
  const buttons = ["copy", "speak", "edit", "erase", "retry", "retry-with", "undo", ...(rates ? ["good", "bad"] : []), "rewrite", "branch", "picture"];
  transcript = shown.transcript = mount(element, { labels: said.transcript, language, actions: buttons, diagrams, python, textOf, render, canFix: true });
  const on = (name, then) => element.addEventListener(`transcript:${name}`, ({ detail }) => then(detail));
  on("earlier", earlier);
  on("end", () => box()?.focus());
  on("away", ({ isAway }) => document.documentElement.toggleAttribute("data-away", isAway));
  on("choose", ({ value }) => actions.choose(value));
  on("speak", ({ turn }) => speak(turn));
  on("retry", ({ turn }) => actions.retry(turn));
  on("undo", ({ turn }) => actions.undo(turn));
  on("edit", ({ turn, text }) => actions.edit(turn, text));
  on("unsent", ({ text }) => keepDraft(shown.conversation, { text }));
  on("failed", ({ text }) => hint(text));
  on("version", ({ message, part }) => {
    if (part === "message") transcript.stay(); // the question stays where it is, however long what follows it is
    actions.version(message);
  });
  on("branch", ({ turn }) => actions.branch(turn));
  on("picture", ({ turn }) => actions.picture(turn));
  for (const name of ["good", "bad"]) on(name, ({ turn }) => actions.rate(turn, name === "good"));
  on("rewrite", ({ turn }) => actions.rewrite(turn));
  on("erase", ({ turn }) => actions.erase(turn));
  on("fix", ({ text }) => (sending || written ? hint(said.artifact_busy, () => sending || written) : send({ text, files: [] }, { id: newId(), again: false })));
  draw();
  transcript.toEnd();
  done();
}));
document.addEventListener("own-data-deleted", () => transcript?.leave());
document.addEventListener("click", ({ target }) => {
  const example = target.closest?.("#examples .example");
  if (!example || sending) return;
  const { file, tools } = example.dataset, needs = tools !== undefined && { tools: true };
  if (needs && !panel.values().tools && !panel.about("tools").fixed) panel.set("tools", true); // the switch shows it
  send({ text: example.value, files: file ? [{ path: file }] : [] }, { id: newId(), again: false }, needs);
});

if (wish.prompt || wish.model) known.then(() => {
  for (const name of ["prompt", "model"]) given.delete(name);
  const rest = given.size ? `?${given}` : "";
  history.replaceState({ isNew: true }, "", location.pathname + rest + location.hash); // a reload does not fill it again
  if (wish.prompt) composer.change((value) => (value.text.startsWith(wish.prompt) ? value : joined({ text: wish.prompt }, value)));
  if (wish.model) document.dispatchEvent(new CustomEvent("model-wanted", { detail: { id: wish.model, label: wish.model } }));
});
tellHidden();
tellWindow();
openPictures();
openSources();
seekFound();
read();

// Says above the composer that a message which was taken back is still stored, and shows it again. Otherwise a chat whose
// only message was taken back would look as if it were lost.
function tellHidden() {
  let id = "";
  const again = button("", said.hidden_show);
  const note = make("p", { id: "hidden", role: "status" });
  again.addEventListener("click", async () => {
    box()?.focus(); // the button goes
    if (await actions.version(id)) composer.redone();
  });
  document.addEventListener("chat-view", ({ detail }) => {
    if (detail.hidden === id) return;
    id = detail.hidden;
    note.replaceChildren(...(id ? [said.hidden, " ", again] : []));
  });
  when("#dock", (dock) => dock.before(note));
}

// Asks how full the model's window is when an answer has ended or another model is chosen. Only figures that say something
// are shown, by a module of their own. A summary that an answer has made is drawn when its chat is read once more.
function tellWindow() {
  const LEAST = 1 / 3;
  let gauge, asked;
  const isMarked = () => stored.some(({ bubbles }) => bubbles.some(({ kind }) => kind === "summary"));
  const summarize = async () => {
    await act("/summary", { body: { settings: settings() } });
    asked = undefined;
    await measure();
  };
  const measure = async () => {
    await frame(); // the turns are there then
    const id = shown.conversation, last = stored.at(-1);
    const about = [id, last?.id, last?.caption, shown.model, isMarked()].join();
    if (about === asked || written) return;
    asked = about;
    const use = id && id !== TEMPORARY && last && (await ask(`/${id}/window?model=${encodeURIComponent(shown.model ?? "")}`).catch(() => undefined));
    if (asked !== about) return;
    if (use?.share >= LEAST || use?.has_summary) gauge ??= await load("gauge").catch(() => undefined);
    gauge?.show(use?.share >= LEAST || use?.has_summary ? use : undefined, summarize);
    if (use?.has_summary && isWhole && !isMarked()) refresh();
  };
  document.addEventListener("chat-view", measure);
  live.measure = measure;
  when("#chat", (chat) => chat.addEventListener("click", ({ target }) => target.closest("[data-summary]") && act("/summary", { method: "DELETE" })));
}

// Makes the pictures of the chat buttons that open the viewer. The viewer is loaded with the first one.
function openPictures() {
  const PICTURES = "#chat .part img:not(a img, button img)";
  const open = async (picture) => {
    const show = await load("viewer").catch(() => hint(said.chats_failed));
    if (!show) return;
    const pictures = [...document.querySelectorAll(`:is(${PICTURES})[role]`)].filter((one) => one.checkVisibility());
    if (pictures.includes(picture) && !document.querySelector("dialog[open]")) show.pictures(pictures, picture);
  };
  const act = (event) => {
    if (!event.target.matches(`:is(${PICTURES})[role]`) || (event.key && ![" ", "Enter"].includes(event.key))) return;
    event.preventDefault();
    open(event.target);
  };
  when("#chat", (chat) => {
    chat.addEventListener("click", act);
    chat.addEventListener("keydown", act);
    chat.addEventListener("load", ({ target: picture }) => { // not for one that cannot be shown
      if (!picture.matches(PICTURES)) return;
      picture.setAttribute("role", "button");
      picture.tabIndex = 0;
      picture.title = said.viewer_open;
    }, true);
  });
}

// Opens a cited passage in its document, when the number of the source or its title in the list is pressed. If the
// document is gone, the passage is shown in the list.
function openSources() {
  const OPENING_MS = 400; // a page is drawn within this time, if the server is not busy
  let opening = false;
  document.addEventListener("transcript:source", async ({ detail: { turn, source, passage, opener } }) => {
    if (opening) return;
    opening = true;
    const { title, page, number } = source, chat = shown.conversation;
    const slow = setTimeout(() => hint(said.passage_opening.replace("{name}", () => title)), OPENING_MS);
    try {
      const [found, show] = await Promise.all([
        ask(`/${chat}/passage`, { method: "POST", body: { document: title, page, passage } }),
        load("viewer"),
      ]);
      if (chat === shown.conversation && !document.querySelector("dialog[open]")) show.passage(found, opener);
    } catch (error) {
      if (chat === shown.conversation) {
        hint(error.status ? error.message : said.chats_failed);
        transcript.showSource(turn, number);
      }
    }
    clearTimeout(slow);
    opening = false;
  });
}

// Goes to the message that a search has found: shows its branch, lets older turns come, scrolls to the first of the words,
// and marks them for a moment. What the visitor does meanwhile, and the end of the search, ends it.
function seekFound() {
  const WAIT_MS = 15000, MARK_MS = 3000, FRAMES = 30, MOST = 500;
  let wish = 0;
  for (const kind of ["wheel", "touchmove", "pointerdown", "keydown"]) {
    addEventListener(kind, () => wish++, { passive: true, capture: true });
  }

  const rowOf = ({ message, is_answer }) => {
    const turn = $(`#chat [data-turn="${CSS.escape(message)}"]`);
    const answers = (is_answer && turn?.querySelector(".lane[data-chosen]")) || turn; // of several, the one that the chat goes on with
    const found = answers?.querySelectorAll(is_answer ? "article.answer" : "article.mine") ?? [];
    return [...found].at(is_answer ? -1 : 0);
  };
  // The places of the words in a row. Those that are divided by formatting have none.
  const rangesOf = (row, words, most) => {
    const forms = [...new Set(words)].sort((one, other) => other.length - one.length);
    const pattern = new RegExp(forms.map((word) => word.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&")).join("|"), "giu");
    const texts = document.createTreeWalker(row, NodeFilter.SHOW_TEXT), ranges = [];
    for (let text = texts.nextNode(); text; text = texts.nextNode()) {
      if (text.parentElement.closest("details, .caption, [data-previewed], [data-own]")) continue;
      for (const { 0: word, index } of text.nodeValue.matchAll(pattern)) {
        if (ranges.length === most) return ranges;
        const range = document.createRange();
        range.setStart(text, index);
        range.setEnd(text, index + word.length);
        ranges.push(range);
      }
    }
    return ranges;
  };

  let leaving;
  const clear = () => {
    clearTimeout(leaving);
    $("#chat [data-found]")?.removeAttribute("data-found");
    CSS.highlights?.delete("found");
  };
  document.addEventListener("search-over", () => {
    wish++;
    clear();
  });
  const mark = (row, words) => {
    clear();
    row.dataset.found = "";
    CSS.highlights?.set("found", new Highlight(...rangesOf(row, words, MOST)));
    leaving = setTimeout(clear, MARK_MS);
  };

  const bring = async (place, isOver) => {
    let chosen = place.is_shown, ready = place.is_shown;
    while (!isOver()) {
      const isOpen = shown.conversation === place.conversation && shown.turns.length;
      if (isOpen && rowOf(place)) return true;
      if (isOpen && !chosen) {
        chosen = true;
        document.addEventListener("chat-view", () => (ready = true), { once: true });
        actions.version(place.message);
      } else if (isOpen && ready) earlier();
      await frame();
    }
    return false;
  };
  document.addEventListener("message-sought", async ({ detail: place }) => {
    const mine = ++wish, end = performance.now() + WAIT_MS;
    if (!(await bring(place, () => mine !== wish || performance.now() > end))) return;
    transcript.stay();
    const log = $("#chat .transcript");
    let row;
    for (let frames = 0; frames < FRAMES && mine === wish; frames++) { // rows that come into view get their true height
      row = rowOf(place);
      if (!row) return;
      $(`[aria-controls="${row.closest(".lane:not([data-shown])")?.id}"]`)?.click(); // its tab
      const { top, height } = (rangesOf(row, place.words, 1)[0] ?? row).getBoundingClientRect();
      log.scrollTop += top + Math.min(height, log.clientHeight) / 2 - log.getBoundingClientRect().top - log.clientHeight / 2;
      if (frames === 0) mark(row, place.words);
      await frame();
    }
    if (row?.isConnected && mine === wish) mark(row, place.words);
  });
}
