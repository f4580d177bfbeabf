// The voice: dictation, answers that are read aloud, and a conversation without hands. It is loaded when it is used, and
// asks the server then what speaks and what writes down, and for its sentences.
import { upload } from "../composer/composer.js";
import { recorder } from "../composer/recorder.js";
import { Ear, languageOf, sentencesOf, spokenOf, wavOf } from "../composer/spoken.js";
import { keepDraft } from "./chats.js";
import { addressOf, ask, post, request, stream } from "./network.js";
import { $, box, button, editor, hint, language, make, ofAll, root, said, shown } from "./shared.js";

const SPEEDS = [1, 1.25, 1.5, 2, 0.75], VOICES_MS = 1500, SAID_S = 20, AHEAD_S = 0.1, RESUME_MS = 1000;
const { SpeechRecognition = /** @type {any} */ (globalThis).webkitSpeechRecognition } = /** @type {any} */ (globalThis);
const fill = (text, values) => Object.entries(values).reduce((all, [name, value]) => all.replace(`{${name}}`, () => value), text);

/** @type {Promise<any> | undefined} */
let asked;
const facts = () => (asked ??= request("/voice").catch((error) => {
  asked = undefined;
  hint(error.message, undefined, SAID_S);
}));

// The panel above the composer: what the voice does, which voice speaks or where the sound goes, and its buttons.
const state = make("p", { class: "state", role: "status" }), note = make("p", { class: "note", role: "status" });
const again = button("again", ""), pause = button("pause", ""), speed = button("speed", ""), halt = button("halt", ""), end = button("end", "");
const panel = make("section", { id: "voice", "aria-label": said.hands_free, hidden: true },
  make("i", { "aria-hidden": "true" }), make("div", {}, state, note), again, pause, speed, halt, end);
$("#dock").before(panel);

let reading = /** @type {any} */ (undefined); // the answer that is read aloud
let readings = 0; // changes with each press of the button, and when the chat is left: an earlier one must not begin then
let talk = /** @type {any} */ (undefined); // the conversation without hands
let rate = Number(ofAll?.getItem("speed")) || 1;
const draw = (texts) => {
  const mode = talk ? talk.state : reading ? "reading" : "";
  panel.hidden = !mode;
  panel.dataset.mode = mode;
  if (!mode) return;
  const isPaused = Boolean(reading?.isPaused), now = talk ? texts[mode] ?? said.composer[mode] : isPaused ? texts.paused : reading?.isOwn ? texts.speaking : texts.reading;
  if (state.textContent !== now) state.textContent = now;
  panel.setAttribute("aria-label", talk ? said.hands_free : said.aloud);
  pause.textContent = isPaused ? texts.go_on : texts.pause;
  speed.textContent = `${rate.toLocaleString(language)}×`;
  speed.title = texts.speed;
  speed.setAttribute("aria-label", `${texts.speed}: ${speed.textContent}`);
  halt.textContent = talk ? texts.interrupt : texts.stop;
  end.textContent = texts.end;
  again.textContent = texts.again;
  again.hidden = !talk?.kept.length || mode !== "listening";
  pause.hidden = Boolean(talk);
  speed.hidden = Boolean(talk || reading?.isOwn);
  halt.hidden = Boolean(talk) && !["thinking", "speaking"].includes(mode);
  end.hidden = !talk;
};
const tell = (text) => void (note.textContent !== text && (note.textContent = text));
pause.addEventListener("click", () => reading?.pause());
speed.addEventListener("click", () => reading?.faster());
halt.addEventListener("click", () => (talk ? talk.interrupt() : reading?.stop()));
end.addEventListener("click", () => talk?.end());
again.addEventListener("click", () => talk?.send(...talk.kept.splice(0)));
const HAS_ESCAPE = "#chat form, .artifact, #find, .settings .content"; // where the key cancels or closes something else
addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.isComposing || event.defaultPrevented || (!talk && !reading) || event.target.closest?.(HAS_ESCAPE) || document.querySelector("dialog[open], [popover=auto]:popover-open")) return;
  if (talk) ["thinking", "speaking"].includes(talk.state) ? talk.interrupt() : talk.end();
  else reading?.stop();
}, true);
/** The chat that is shown, while it is shown. A new one has its id at the latest when it is left. @type {{id?: string}} */
let here = {};
document.addEventListener("chat-opening", ({ detail }) => {
  dictation?.finish(); // for the draft of this chat
  leave();
  here.id = detail;
  here = {};
});
const drop = () => (leave(), dictation?.drop());
document.addEventListener("own-data-deleted", drop);
addEventListener("pagehide", drop);
document.addEventListener("composer:stop", () => own?.stop());
// A recording hears the same words.
document.addEventListener("click", ({ target }) => /** @type {any} */ (target).closest?.("#composer .microphone-button") && talk?.end(), true);
const leave = () => {
  readings += 1;
  talk?.end();
  reading?.stop();
  own?.stop();
};

// Reading aloud

// One player for all, because a browser that lets it play at a press of a button lets it play on.
const player = new Audio(), silent = URL.createObjectURL(new Blob([wavOf([new Float32Array(160)], 16_000)], { type: "audio/wav" }));

/** The voice of the browser for a language. One of this computer comes first, because others send the text to their maker. */
const voiceFor = async (wanted) => {
  const { speechSynthesis: voices } = globalThis;
  if (!voices) return undefined;
  if (!voices.getVoices().length) {
    await new Promise((then) => {
      voices.addEventListener("voiceschanged", then, { once: true });
      setTimeout(then, VOICES_MS);
    });
  }
  const fits = voices.getVoices().filter(({ lang }) => lang.replace("_", "-").split("-")[0].toLowerCase() === wanted);
  const rank = (one) => Number(one.localService) * 4 + Number(navigator.languages.includes(one.lang)) * 2 + Number(one.default);
  return fits.sort((one, other) => rank(other) - rank(one))[0];
};

/** Reads sentences aloud, one after the other, as they come. */
class Reader {
  queue = /** @type {{text: string, sound?: Promise<Blob>}[]} */ ([]);
  isWhole = false;
  told = 0; // sentences that were put into the queue
  control = new AbortController();
  turn = ""; // the id of the turn, "" for the last one
  wake = /** @type {(value?: any) => void} */ (() => {});
  silence = () => {}; // ends what is being heard
  isPaused = false;
  at = /** @type {any} */ (undefined); // what was heard last, and up to which second
  from = 0;
  failed = "";
  text = "";
  voices = /** @type {Record<string, any>} */ ({});

  constructor(known, changed) {
    this.known = known;
    this.byServer = known.speaks;
    this.changed = changed;
    this.done = this.run().finally(() => this.stop());
  }

  /** Take what is new of the text of the answer. */
  feed(markdown, isWhole) {
    const all = sentencesOf(spokenOf(markdown, isWhole), isWhole);
    this.text = markdown;
    this.queue.push(...all.slice(this.told).map((text) => ({ text })));
    this.told = Math.max(this.told, all.length);
    this.isWhole ||= isWhole;
    this.wake();
  }

  pause() {
    this.isPaused = !this.isPaused;
    this.silence();
    this.wake();
    this.changed();
  }

  faster() {
    rate = SPEEDS[(SPEEDS.indexOf(rate) + 1) % SPEEDS.length];
    ofAll?.setItem("speed", String(rate));
    player.playbackRate = rate;
    this.changed();
  }

  stop() {
    this.control.abort();
    this.silence();
    this.wake();
  }

  async run() {
    const { signal } = this.control;
    while (!signal.aborted) {
      const [next] = this.queue;
      if (this.isPaused || !next) {
        if (!next && this.isWhole) break;
        await new Promise((then) => (this.wake = then));
        continue;
      }
      const isSaid = await (this.byServer ? this.play(next) : this.say(next.text));
      if (isSaid) this.queue.shift();
    }
  }

  fetch(one) {
    one.sound ??= (async () => {
      const headers = { "content-type": "application/json", "accept-language": language };
      const answer = await fetch(addressOf("/speech"), { method: "POST", headers, body: JSON.stringify({ text: one.text }), signal: this.control.signal });
      if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).detail || said.chats_failed);
      return answer.blob();
    })();
    one.sound.catch(() => {}); // `play` says it
    return one.sound;
  }

  /** Play the sound of the server. Says whether it was heard to its end. */
  async play(one) {
    const { said: texts, speaker } = this.known, { signal } = this.control;
    let blob;
    try {
      blob = await this.fetch(one);
    } catch (error) {
      if (signal.aborted) return false;
      this.byServer = false;
      tell((this.failed = fill(texts.speech_failed, { why: error.message })));
      return false; // the browser says it
    }
    if (this.isPaused || signal.aborted) return false;
    if (this.queue[1]) void this.fetch(this.queue[1]);
    tell(speaker ? fill(texts.by_provider, { name: speaker }) : texts.by_server);
    const sound = player, url = URL.createObjectURL(blob);
    if (this.at !== one) [this.at, this.from] = [one, 0]; // a pause goes on where it was
    sound.src = url;
    sound.currentTime = this.from;
    sound.playbackRate = rate;
    this.changed(true);
    const isHeard = await new Promise((then) => {
      this.silence = () => then(false);
      sound.onended = () => then(true);
      sound.onerror = () => then(undefined);
      sound.play().catch(({ name }) => {
        if (name === "NotAllowedError") hint(texts.cannot_play), this.stop();
        else if (name !== "AbortError") then(undefined); // it cannot be decoded
      });
    });
    this.from = sound.currentTime;
    sound.pause();
    URL.revokeObjectURL(url);
    if (isHeard === undefined && !signal.aborted) {
      this.byServer = false;
      this.failed = fill(texts.speech_failed, { why: said.transcript.failed });
    }
    return Boolean(isHeard);
  }

  /** Let the browser say it. Says whether it was heard to its end. */
  async say(text) {
    const { said: texts } = this.known, wanted = languageOf(this.text.length > text.length ? spokenOf(this.text).slice(0, 2000) : text, language);
    const voice = (this.voices ??= {})[wanted] ??= await voiceFor(wanted);
    if (this.isPaused || this.control.signal.aborted) return false;
    if (!voice) {
      const name = new Intl.DisplayNames([language], { type: "language" }).of(wanted);
      hint([this.failed, fill(texts.no_voice, { language: name })].filter(Boolean).join(" "), undefined, SAID_S);
      this.stop();
      return false;
    }
    tell([this.failed, voice.localService ? texts.by_computer : texts.by_browser].filter(Boolean).join(" "));
    const speech = Object.assign(new SpeechSynthesisUtterance(text), { voice, lang: voice.lang, rate });
    this.changed(true);
    return new Promise((then) => {
      this.silence = () => {
        then(false);
        speechSynthesis.cancel();
      };
      speech.onend = () => then(true);
      speech.onerror = ({ error }) => {
        if (error === "not-allowed") hint(texts.cannot_play);
        if (!["interrupted", "canceled"].includes(error)) this.stop();
        then(false);
      };
      speechSynthesis.speak(speech);
    });
  }
}

/** Plays the sound that the model itself writes, while it comes. It has what a reader of texts has. */
class OwnSound {
  control = new AbortController();
  turn = "";
  told = 1; // there is something to hear
  isOwn = true;
  isPaused = false;
  context = /** @type {any} */ (undefined);
  texts = /** @type {any} */ (undefined);

  pause() {
    this.isPaused = !this.isPaused;
    this.isPaused ? this.context.suspend() : this.context.resume();
    draw(this.texts);
  }

  stop() {
    this.control.abort();
    this.context?.close();
    this.context = undefined;
  }

  /** Ask for the sound until there is some, or there will be none. @param {string} url */
  async ask(url) {
    const { control: { signal } } = this;
    for (;;) {
      const answer = await fetch(addressOf(`/${url.split("?")[0].replace(/events$/, "sound")}`), { signal, cache: "no-store" }).catch(() => undefined);
      if (answer?.status !== 204 || !answer.headers.has("retry-after")) return answer; // the server has waited for a while
    }
  }

  /** Play it. Says whether there was any. @param {string} url of the events of the answer @param {() => Promise<any>} begins that returns the sentences */
  async play(url, begins) {
    const { control: { signal } } = this, isOver = new Promise((then) => signal.addEventListener("abort", () => then(undefined)));
    const answer = await this.ask(url);
    const [, rate, channels] = /rate=(\d+);channels=(\d+)/.exec(answer?.headers.get("content-type") ?? "")?.map(Number) ?? [];
    if (!rate || !channels || !answer?.body || answer.status !== 200) return false;
    this.texts = await begins();
    if (!this.texts || signal.aborted) return true;
    const context = this.context = new AudioContext();
    // A browser that lets nothing play before a press leaves the promise of `resume` open.
    await Promise.race([context.resume(), isOver, new Promise((then) => setTimeout(then, RESUME_MS))]);
    if (signal.aborted) return true;
    if (context.state !== "running") return hint(this.texts.cannot_play), true;
    let at = 0, rest = new Uint8Array(), last = /** @type {AudioBufferSourceNode | undefined} */ (undefined);
    const heard = () => new Promise((then) => last?.addEventListener("ended", then));
    const chunks = answer.body.getReader();
    try {
      for (let { value, done } = await chunks.read(); !done; { value, done } = await chunks.read()) {
        const bytes = new Uint8Array(rest.length + value.length), frame = 2 * channels;
        bytes.set(rest);
        bytes.set(value, rest.length);
        const count = Math.floor(bytes.length / frame), samples = new DataView(bytes.buffer);
        rest = bytes.slice(count * frame);
        if (!count) continue;
        const piece = context.createBuffer(channels, count, rate);
        for (let channel = 0; channel < channels; channel++) {
          const into = piece.getChannelData(channel);
          for (let n = 0; n < count; n++) into[n] = samples.getInt16(n * frame + 2 * channel, true) / 32768;
        }
        last = Object.assign(context.createBufferSource(), { buffer: piece });
        last.connect(context.destination);
        at = Math.max(at, context.currentTime + AHEAD_S);
        last.start(at);
        at += piece.duration;
      }
      if (last && context.currentTime < at) await Promise.race([heard(), isOver]);
    } catch {
      // it was stopped, or the network is gone: the answer has the whole sound later
    }
    return true;
  }
}

/** Give the text of a running answer to `got` as the model writes it. Says whether its end has come. */
const follow = async (url, got, signal) => {
  const parts = /** @type {{type: string, text: string}[]} */ ([]);
  const take = ({ type, content, is_type_switched: isNew, as }) => {
    if (type === "relabelled" && parts.length) parts[parts.length - 1].type = as;
    if (!["output_text", "reasoning", "error"].includes(type)) return;
    if (isNew || type === "error" || !parts.length) parts.push({ type, text: "" });
    parts[parts.length - 1].text += content;
  };
  const answer = await fetch(addressOf(`/${url.split("?")[0]}`), { signal, cache: "no-store" });
  if (!answer.ok) return false;
  const chunks = answer.body.getReader(), decoder = new TextDecoder();
  for (let rest = "";;) {
    const { value, done } = await chunks.read();
    if (done) return false;
    const events = (rest + decoder.decode(value, { stream: true })).split("\n\n");
    rest = events.pop() ?? "";
    for (const event of events) {
      const data = /^data: (.*)$/m.exec(event)?.[1], isEnd = /^event: end$/m.test(event);
      if (data && !isEnd) take(JSON.parse(data));
      if (isEnd) return got(parts), true;
    }
    got(parts);
  }
};
const textOf = async (turn) => (await ask(`/${shown.conversation}/messages/${encodeURIComponent(turn)}/text`)).answer;

let own = /** @type {OwnSound | undefined} */ (undefined), speaks = false; // the sound that may come, and whether the last answer had some
/** Play what the model of a running answer says itself, in place of a voice that reads. Says whether it says something. */
const hearOwn = async (turn, url) => {
  if (!$("#about [data-speaks]")) return false;
  own?.stop();
  const mine = own = Object.assign(new OwnSound(), { turn });
  const isHeard = await mine.play(url, async () => {
    const { said: texts } = (await facts()) ?? {};
    if (!texts || mine.control.signal.aborted) return undefined;
    reading?.stop();
    reading = mine;
    tell(texts.by_model);
    if (talk) Object.assign(talk, { reader: mine, state: "speaking" });
    draw(texts);
    return texts;
  });
  const wasStopped = mine.control.signal.aborted;
  if (!wasStopped) speaks = isHeard;
  mine.stop();
  if (own === mine) own = undefined;
  if (reading === mine) reading = undefined;
  if (mine.texts) draw(mine.texts);
  return isHeard || wasStopped;
};

/** Read the answer of a turn aloud, while it is written or later. Says when it was read, or stopped. @param {string} turn @param {string} [url] */
export async function read(turn, url) {
  const lastTurn = () => shown.turns.at(-1)?.id;
  const isSame = reading && (reading.turn || lastTurn()) === turn;
  const press = ++readings;
  reading?.stop();
  own?.stop();
  if (isSame && !url) return; // a second press stops it
  Object.assign(player, { src: silent }).play().catch(() => {}); // while the press of the button counts
  const heardOwn = url ? hearOwn(turn, url) : Promise.resolve(false), isWanted = !url || talk || ofAll?.getItem("aloud");
  if (url && (speaks || !isWanted) && (await heardOwn)) return;
  const known = isWanted && (await facts());
  if (!known || press !== readings) return;
  tell("");
  const mine = reading = new Reader(known, (isHeard) => {
    if (isHeard && talk?.reader === mine) talk.state = "speaking";
    draw(known.said);
  });
  mine.turn = turn;
  if (talk) talk.reader = mine;
  draw(known.said);
  const { signal } = mine.control;
  const isLive = url || (lastTurn() === turn && shown.turns.at(-1)?.is_running ? stream.reading() : "");
  const texts = (parts) => parts.filter(({ type }) => type !== "reasoning").map(({ text }) => text).join("\n\n");
  let last = "";
  try {
    const isOver = isLive && await follow(isLive, (parts) => mine.feed((last = texts(parts)), false), signal).catch(() => false);
    if (!signal.aborted) mine.feed(isOver && last ? last : await textOf(turn || lastTurn()), true);
  } catch ({ message }) {
    if (!signal.aborted) hint(message);
    mine.stop();
  }
  await mine.done;
  if (reading === mine) reading = undefined;
  if (!mine.told && !signal.aborted) hint(known.said.no_text);
  draw(known.said);
  if (url) await heardOwn;
}

// Dictation

/** Put a text into the box at its caret. */
const insert = (text) => {
  const area = box(), { selectionStart: from, selectionEnd: to, value } = area;
  const before = /\S$/.test(value.slice(0, from)) ? " " : "", after = /^\S/.test(value.slice(to)) ? " " : "";
  area.setRangeText(before + text + after, from, to, "end");
  area.dispatchEvent(new Event("input", { bubbles: true }));
};
/** Let the server write a recording down. Its errors have a sentence. */
const words = async (file, progress = (_) => {}) => {
  const [{ path }] = await upload(root, [file], { language });
  const answer = await post("/dictation", { path }, { signal: undefined, progress });
  return answer.text;
};
/** Attach a recording that was not written down to the chat that it was made for. */
const keepSound = async (file, chat = here) => {
  const files = chat === here ? undefined : await upload(root, [file], { language }).catch(() => undefined);
  files ? keepDraft(chat.id, { text: "", files }) : editor.files.attach([file], true);
};
/** Put words into the box of their chat. */
const put = (text, chat) => (chat === here ? insert(text) : keepDraft(chat.id, { text }));
let isAsking = false; // the server, what writes speech down
let dictation = /** @type {{finish: () => void, drop: () => void} | undefined} */ (undefined);
/** Write a recording down for its chat. Another chat shows nothing of that. */
const write = async (file, texts, chat) => {
  let isOver = false;
  const tellHere = (text, ...how) => chat === here && hint(text, ...how);
  const say = ({ text }) => tellHere(text, () => !isOver, Infinity);
  say({ text: texts.writing });
  try {
    const text = await words(file, say);
    tellHere("");
    put(text, chat);
  } catch ({ message }) {
    keepSound(file, chat);
    tellHere(fill(texts.attached, { why: message || said.chats_failed }), undefined, SAID_S);
  }
  isOver = true;
};
// A press of Enter ends the dictation: its text can be changed before it is sent.
addEventListener("keydown", (event) => {
  if (!dictation || event.key !== "Enter" || event.target !== box() || event.isComposing) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  dictation.finish();
}, true);

/** Write speech into the box: this recording, or what is recorded now. @param {File} [file] */
export async function dictate(file) {
  const chat = here;
  if (!file && isAsking) return; // a second press
  isAsking ||= !file;
  const known = await facts();
  if (!file) isAsking = false;
  if (!known) return void (file && keepSound(file, chat));
  const { said: texts, writer, why } = known;
  if (file && writer) return write(file, texts, chat);
  if (file) {
    keepSound(file, chat);
    return hint(fill(texts.attached, { why }), undefined, SAID_S);
  }
  if (chat !== here) return;
  if (dictation) return dictation.finish();
  if (!writer && !SpeechRecognition) return hint(fill(texts.no_writer, { why }), undefined, SAID_S);
  if (talk) talk.end();
  let isOver = false;
  const over = () => {
    isOver = true;
    dictation = undefined;
  };
  hint(writer ? fill(texts.to_server, { reader: writer }) : texts.to_browser, () => !isOver, Infinity);
  if (!writer) return recognize(texts, over, chat);
  const row = $("#composer .buttons");
  const made = recorder({
    labels: { ...said.composer, record: said.composer.dictate, done: texts.write },
    attach: ([sound]) => {
      over();
      write(sound, texts, chat);
      return true;
    },
    shows: (is) => {
      row.hidden = is;
      if (is) return;
      over();
      made.row.remove();
    },
    left: (/** @type {any} */ { pointerType }) => pointerType === "touch" || box().focus(),
  });
  dictation = { finish: made.finish, drop: () => $(".recorder-cancel", made.row).click() };
  row.before(made.row);
  made.begin();
}

/** Let the browser write down what is said until a pause. */
const heard = (texts, got) => {
  const recognition = Object.assign(new SpeechRecognition(), { lang: language, interimResults: true });
  recognition.onresult = ({ results }) => {
    const all = [...results].map(([{ transcript }]) => transcript).join(" ").trim();
    got(all, results[results.length - 1].isFinal);
  };
  recognition.onerror = ({ error }) => {
    const { refused, none } = said.composer;
    const why = { "not-allowed": refused, "service-not-allowed": texts.browser_failed, "audio-capture": none, network: texts.browser_failed, "no-speech": texts.nothing }[error];
    if (error !== "aborted") recognition.why = why ?? texts.browser_failed;
    recognition.isFatal = error !== "no-speech";
  };
  recognition.start();
  return recognition;
};
const recognize = (texts, over, chat) => {
  const microphone = $("#composer .microphone-button");
  const recognition = heard(texts, (text, isFinal) => isFinal && put(text, chat));
  microphone?.setAttribute("aria-pressed", "true");
  dictation = { finish: () => recognition.stop(), drop: () => recognition.abort() };
  recognition.onend = () => {
    over();
    microphone?.removeAttribute("aria-pressed");
    hint(recognition.why ?? "", undefined, SAID_S);
  };
};

// The conversation without hands

/** Open the conversation, or close it. */
export async function converse() {
  if (talk) return talk.end();
  const known = await facts();
  if (!known || talk) return;
  const { said: texts, writer, why } = known, about = $("#about [data-takes]")?.dataset ?? {};
  const way = "hears" in about ? "model" : writer ? "server" : SpeechRecognition ? "browser" : "";
  if (!way) return hint(fill(texts.no_writer, { why }), undefined, SAID_S);
  reading?.stop();
  dictation?.drop();
  const mine = talk = new Talk(known, way);
  draw(texts);
  tell("");
  end.focus();
  await mine.begin();
}

/** Wait until no answer is written. */
const idle = () => new Promise((then) => {
  const look = () => {
    if (editor.isRunning()) return;
    document.removeEventListener("composer:running", look);
    then(undefined);
  };
  document.addEventListener("composer:running", look);
  look();
});

class Talk {
  state = "waiting"; // for the microphone, then "listening", "thinking", "speaking"
  round = 0; // changes when the visitor interrupts
  known = /** @type {any} */ (undefined);
  way = ""; // what hears the visitor: "model", "server", "browser"
  isSent = false; // the next answer that begins is the one to read
  isOnWay = false; // the page has begun to send
  isStored = false;
  kept = /** @type {File[]} */ ([]); // recordings that could not be written down
  control = new AbortController();
  reader = /** @type {any} */ (undefined);

  constructor(known, way) {
    [this.known, this.way] = [known, way];
    const { signal } = this.control;
    document.addEventListener("chat-view", ({ detail }) => this.look(detail), { signal });
    document.addEventListener("message-sent", () => (this.isOnWay = true), { signal });
    document.addEventListener("message-stored", () => (this.isStored = true), { signal });
    document.addEventListener("message-refused", () => this.end(), { signal });
    document.addEventListener("message-kept", () => this.isSent && this.turn("listening"), { signal }); // the visitor has stopped it
  }

  turn(state) {
    if (talk !== this) return;
    this.state = state;
    draw(this.known.said);
    if (state !== "listening") return;
    this.isSent = false;
    this.listen();
  }

  async begin() {
    const { composer } = said, { signal } = this.control;
    try {
      if (this.way === "browser") return this.turn("listening");
      const tracks = await navigator.mediaDevices.getUserMedia({ audio: { echoCancellation: true, noiseSuppression: true, autoGainControl: true } });
      this.sounds = tracks;
      if (signal.aborted) return this.release();
      const context = (this.context = new AudioContext());
      context.resume();
      await context.audioWorklet.addModule(new URL("../composer/worklet.js", import.meta.url).href);
      if (signal.aborted) return this.release();
      const blocks = new AudioWorkletNode(context, "blocks"), source = context.createMediaStreamSource(tracks);
      this.ear = new Ear(context.sampleRate);
      blocks.port.onmessage = ({ data }) => this.hear(data);
      source.connect(blocks).connect(context.destination); // it gives no sound, but is asked for some
      tracks.getTracks()[0].addEventListener("ended", () => this.end(composer.trouble));
      this.turn("listening");
    } catch (error) {
      const why = { NotAllowedError: composer.refused, SecurityError: composer.refused, NotFoundError: composer.none };
      this.end(why[/** @type {Error} */ (error).name] ?? composer.trouble);
    }
  }

  listen() {
    const { said: texts, writer } = this.known;
    tell({ model: texts.to_model, server: fill(texts.to_server, { reader: writer }), browser: texts.to_browser }[this.way]);
    if (this.ear) this.ear.isStrict = false;
    if (this.way !== "browser") return;
    let words = "";
    const recognition = (this.recognition = heard(texts, (text) => (words = text)));
    recognition.onend = () => {
      if (talk !== this || this.state !== "listening") return;
      if (recognition.isFatal && !words) return this.end(recognition.why);
      words ? this.send(words) : this.listen();
    };
  }

  hear(block) {
    const { ear, state } = this;
    if (!ear || talk !== this) return;
    if (state === "thinking") return ear.forget();
    ear.isStrict = state === "speaking";
    const found = ear.hear(block);
    panel.style.setProperty("--loud", String(Math.min(1, 4 * ear.level)));
    if (found === "begins" && state === "speaking") this.interrupt(true);
    if (found === "ends" && this.state === "listening") this.send(new File([ear.take()], "speech.wav", { type: "audio/wav" }));
  }

  /** Send what was said: words, or sounds. @param {(string | File)[]} what */
  async send(...what) {
    const { way } = this, isWritten = way === "server" && what.some((one) => one instanceof File);
    const round = ++this.round, isOver = () => talk !== this || round !== this.round;
    this.turn("thinking");
    try {
      if (isWritten) what = await this.written(what);
      if (isOver()) return;
      for (const one of what) one instanceof File ? editor.files.attach([one], true) : insert(one);
      if (editor.isRunning()) $("#composer .stop-button").click();
      const [, isStored] = await Promise.all([idle(), editor.files.settled()]);
      if (isOver()) return; // it stays in the composer
      if (!isStored) return this.end(); // which says why
      [this.isSent, this.isOnWay, this.isStored] = [true, false, false];
      const isHeld = !$("#composer .submit-button")?.dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true }));
      await editor.submitted();
      if (!isOver() && !this.isOnWay) this.end(isHeld ? $("#offline")?.textContent : undefined); // else the page has said why
    } catch ({ message }) {
      if (isOver()) return;
      this.turn("listening");
      tell(this.kept.length ? fill(this.known.said.kept, { why: message }) : message);
    }
  }

  /** Let the server write these sounds down, one after the other. A failure keeps those that it has not written. */
  async written(what) {
    const texts = /** @type {any[]} */ ([]);
    for (const [n, one] of what.entries()) {
      try {
        texts.push(await words(one));
      } catch (error) {
        const isSilent = error.message === this.known.said.nothing, isLast = n === what.length - 1;
        if (!isSilent) this.kept.push(...what.slice(n));
        if (!texts.length && (!isSilent || isLast)) throw error;
        if (!isSilent) break;
      }
    }
    return texts;
  }

  /** Look at what the chat shows: read an answer that begins aloud. */
  async look({ live }) {
    if (talk !== this || !this.isSent) return;
    if (!live) return this.isStored && this.turn("listening"); // the answer is over
    const { round } = this;
    this.isSent = false;
    await read("", live);
    if (talk === this && round === this.round) this.turn("listening");
  }

  /** Be silent, and listen. The answer is stopped, too. */
  interrupt(isHeard = false) {
    this.round += 1;
    this.isSent = false;
    if (editor.isRunning()) $("#composer .stop-button").click();
    if (!isHeard) this.ear?.forget();
    this.turn("listening");
    this.reader?.stop();
    this.reader = undefined;
  }

  release() {
    for (const track of this.sounds?.getTracks() ?? []) track.stop();
    this.context?.close();
    this.recognition?.abort();
    this.sounds = this.context = this.ear = this.recognition = undefined;
  }

  /** Leave the conversation. The microphone is off then. @param {string} [why] */
  end(why) {
    if (talk !== this) return;
    talk = undefined;
    this.control.abort();
    this.reader?.stop();
    this.release();
    if (this.kept.length) why ??= fill(this.known.said.attached, { why: "" }).trim();
    for (const file of this.kept.splice(0)) keepSound(file);
    const hadFocus = panel.contains(document.activeElement);
    draw(this.known.said);
    if (hadFocus) $("#composer .voice-button")?.focus();
    if (typeof why === "string" || !$("#hint")?.textContent) hint(why || this.known.said.ended);
  }
}
