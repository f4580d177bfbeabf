// The network: requests to the routes, the stream of an answer, and what the page does while it does not reach the server.
import { sends } from "../transcript/elements.js";
import { holdEvents } from "./gradio.js";
import { $, box, language, make, root, said, shown, when } from "./shared.js";

const ANSWER_MS = 3000, RETRY_MS = 1000, TYPED_MS = 500, LONG = 20_000, SAID_MS = 1000, SILENT_MS = 10_000, SLOW_BYTES_MS = 10;
/** Whether the server answers. A proxy in front of it can answer, too, while the server is away. */
const reaches = async () => {
  try {
    const answer = await fetch(`${root}/healthz`, { cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS) });
    return answer.ok && (await answer.json()).status === "ok";
  } catch {
    return false;
  }
};
/** Do what needs the server: at once, or in turn as soon as it can be reached. The page says what of the visitor's waits. */
export const inTurn = tellOffline();
export const stream = readStream();
/** Wait until the server answers. */
export const reached = async () => {
  while (!(await reaches())) await new Promise((then) => setTimeout(then, RETRY_MS));
};

/** The address of a route, which names a guest. */
export const addressOf = (path, query = {}) => {
  const address = new URL(`${root}${path}`, location.href);
  for (const [name, value] of Object.entries({ ...query, guest: shown.guest })) if (value) address.searchParams.set(name, value);
  return address;
};
const failure = (/** @type {any} */ { detail }, status = undefined) => Object.assign(new Error(detail || said.chats_failed), { status });
/** @param {string} path @param {{method?: string, body?: any, signal?: AbortSignal, accept?: string, keepalive?: boolean}} [how] */
const send = (path, { method = "GET", body, signal, accept, keepalive } = {}) => {
  const headers = { "accept-language": language, ...(body && { "content-type": "application/json" }), ...(accept && { accept }) };
  return fetch(addressOf(path), { method, headers, signal, keepalive, cache: "no-store", body: body && JSON.stringify(body) });
};
/** Ask a route. An error has the server's sentence, and the status of its answer, or none without a network. */
export const request = async (path, how) => {
  const answer = await send(path, how), value = answer.status === 204 ? {} : await answer.json().catch(() => ({}));
  if (!answer.ok) throw failure(value, value.detail ? answer.status : undefined); // a proxy answers without one
  return value;
};
/** Ask a route below /conversations. What changes something waits for the network. @param {string} path @param {{method?: string, body?: any}} [how] */
export const ask = (path, how = {}) => {
  const go = () => request(`/conversations${path}`, how);
  return how.method && how.method !== "GET" ? inTurn(false, go) : go();
};
/** Remember what the visitor sets. What is set meanwhile follows, so that the last choice counts. `isTyped`: more may follow. @param {Record<string, any>} choice */
export const choose = async (choice, isTyped = false) => {
  Object.assign(unsaid, choice);
  clearTimeout(typing);
  if (isTyped) return void (typing = setTimeout(() => choose({}).catch(() => undefined), TYPED_MS));
  if (isChoosing) return;
  isChoosing = true;
  try {
    while (Object.keys(unsaid).length) await inTurn(false, sayChoice);
  } finally {
    isChoosing = false;
  }
};
let unsaid = /** @type {Record<string, any>} */ ({}), isChoosing = false, typing;
const sayChoice = () => {
  const body = unsaid;
  unsaid = {};
  const keepalive = JSON.stringify(body).length < LONG; // it goes on if the page is left; browsers allow that for 64 KB
  return request("/settings", { method: "PATCH", body, keepalive }).catch((error) => {
    const names = Object.keys(body);
    if (error instanceof TypeError) unsaid = { ...body, ...unsaid }; // without a network: they are said with the next choice
    else if (error.status === 400 && names.length > 1) return sayEach(body, names);
    throw error;
  });
};
// One wrong setting must not take the others with it.
const sayEach = async (body, names) => {
  let wrong;
  for (const name of names) await request("/settings", { method: "PATCH", body: { [name]: body[name] } }).catch((error) => (wrong ??= error));
  if (wrong) throw wrong;
};
addEventListener("pagehide", () => Object.keys(unsaid).length && sayChoice().catch(() => undefined));
/**
 * Send a message, or a recording that is written down. `progress` is called with what is said until it is stored. The errors are those of `request`.
 * If the server, which writes something every half second, is silent, the connection is given up with an error without status.
 */
export const post = async (path, body, { signal, progress }) => {
  const control = new AbortController(), giveUp = () => control.abort();
  let late, silence;
  const hear = (ms = 0) => {
    clearTimeout(late);
    clearTimeout(silence);
    silence = setTimeout(giveUp, SILENT_MS + ms);
  };
  const begin = () => {
    hear(JSON.stringify(body).length / SLOW_BYTES_MS);
    late = setTimeout(() => progress({ text: said.queue_sending, can_stop: true }), SAID_MS);
    addEventListener("online", giveUp); // a connection of before a break can look open for minutes
  };
  signal?.addEventListener("abort", giveUp);
  try {
    return await posted(path, body, { signal: control.signal, progress, begin, hear });
  } catch (error) {
    throw control.signal.aborted && !signal?.aborted ? failure({}) : error;
  } finally {
    clearTimeout(late);
    clearTimeout(silence);
    signal?.removeEventListener("abort", giveUp);
    removeEventListener("online", giveUp);
  }
};
const posted = async (path, body, { signal, progress, begin, hear }) => {
  const answer = await inTurn(false, () => {
    signal.throwIfAborted();
    begin();
    return send(path, { method: "POST", body, signal, accept: "application/x-ndjson" });
  });
  hear();
  if (!answer.ok) {
    const value = await answer.json().catch(() => ({})), isFinal = answer.status < 500 && ![404, 408, 425, 429].includes(answer.status);
    throw failure(value, value.detail || isFinal ? answer.status : undefined); // else of a proxy, while the server is away
  }
  if (!/ndjson/.test(answer.headers.get("content-type"))) throw failure({}); // of a proxy, too
  const chunks = answer.body.getReader(), decoder = new TextDecoder();
  for (let text = "";;) {
    const { value, done } = await chunks.read();
    hear();
    if (done) throw failure({}); // the process has ended, for example
    const lines = (text + decoder.decode(value, { stream: true })).split("\n");
    text = lines.pop();
    for (const line of lines.map((one) => JSON.parse(one))) {
      if (line.type === "done") return line;
      if (line.type === "error") throw failure(line, line.status);
      progress(line);
    }
  }
};

// Reads the stream of an answer that is being written. It continues a broken stream after its last frame. If a proxy
// holds the stream back, it polls. If nothing comes of the server, the event `server-silent` says for how many seconds,
// and with null that the server is there again.
function readStream() {
  const FIRST_MS = 3000; // the first bytes of a stream come at once, unless something holds them back
  const SILENCE_MS = 7000; // the server sends something every 3 seconds at least, also while the model is silent
  const POLL_MS = 700, LOOK_MS = 1000, LATE_MS = 4000;

  let url = "", last = "", request; // what is read, the id of its last frame, and the running request
  let polls = false;

  let heard = 0, looked = 0; // when the server was heard, and when the page last looked whether it was
  let told = null; // for how many seconds the server was silent, as told last

  const tell = (seconds) => {
    if (seconds === told) return;
    told = seconds;
    document.dispatchEvent(new CustomEvent("server-silent", { detail: seconds }));
  };
  const hear = () => {
    if (told !== null) polls = false; // what the server did not answer was held back by no proxy
    heard = looked = performance.now();
    tell(null);
  };
  const look = () => {
    const now = performance.now();
    if (told === null && now - looked > LATE_MS) heard = now; // the computer slept, or the browser let the page wait
    looked = now;
    if (now - heard >= SILENCE_MS) tell(Math.floor((now - heard) / 1000));
  };
  let watching, isAsking = false;
  const askSilent = async () => {
    if (url) return; // its stream says it
    look();
    if (isAsking || performance.now() - heard < FIRST_MS) return;
    isAsking = true;
    if (await reaches()) hear();
    isAsking = false;
  };
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));
  // A connection of before a break can look open for minutes.
  addEventListener("online", () => request?.abort());
  const ask = (wanted, after, signal) => {
    return fetch(`${root}/${wanted}&after=${encodeURIComponent(after)}${polls ? "&wait=0" : ""}`, { signal, cache: "no-store" });
  };

  // Gives the frames of complete events to `got`. Returns the rest of the text, or what the end says.
  const take = (text, got) => {
    const events = text.split("\n\n"), rest = events.pop(), frames = [];
    let end;
    for (const event of events) {
      const field = Object.fromEntries(event.split("\n").map((line) => /^(\w*): ?(.*)$/s.exec(line)?.slice(1) ?? ["", ""]));
      if (field.event === "end") {
        end = JSON.parse(field.data);
        break;
      }
      if (!field.id) continue;
      frames.push(JSON.parse(field.data));
      last = field.id;
    }
    try {
      got(frames);
    } catch (error) {
      last = ""; // the server sends the whole turn again
      console.error(error);
      throw error;
    }
    return end ?? rest;
  };

  // Reads one response. Returns what the end says, or undefined if the answer has not ended.
  const readOnce = async (wanted, got) => {
    const mine = (request = new AbortController());
    let timer = setTimeout(() => {
      polls = !polls; // a server that answers neither is away
      mine.abort();
    }, polls ? SILENCE_MS : FIRST_MS); // a proxy in front of several servers needs some seconds to leave a silent one
    try {
      const response = await ask(wanted, last, mine.signal);
      // It ended a while ago, and is stored, unless a proxy says so because the server is away.
      if (response.status === 404) return (await reaches()) ? {} : undefined;
      const isOurs = /event-stream/.test(response.headers.get("content-type"));
      if (isOurs || response.status === 429) hear();
      if (response.status === 429) polls = true;
      if (!response.ok || !isOurs) return undefined; // a proxy can answer in the place of a server that is away
      const chunks = response.body.getReader(), decoder = new TextDecoder();
      for (let text = "";;) {
        const { value, done } = await chunks.read();
        clearTimeout(timer);
        if (done || wanted !== url) return undefined;
        hear();
        timer = setTimeout(() => mine.abort(), SILENCE_MS);
        const left = take(text + decoder.decode(value, { stream: true }), got);
        if (typeof left !== "string") return left;
        text = left;
      }
    } catch {
      return undefined; // no network, or a break: it is read again
    } finally {
      clearTimeout(timer);
      mine.abort();
    }
  };

  return {
    reading: () => url,
    reads: (wanted) => Boolean(wanted) && wanted === url,
    // Reads this answer from its beginning, or none, and no longer the one before.
    turnTo: (wanted) => {
      request?.abort();
      [url, last] = [wanted, ""];
      hear();
    },
    // Tells that the page waits for a view, or that it has one. Without a stream, it asks whether the server is there.
    watch: (isWaiting) => {
      if (isWaiting === Boolean(watching)) return;
      clearInterval(watching);
      watching = isWaiting ? setInterval(askSilent, LOOK_MS) : undefined;
      if (!isWaiting || !url) hear();
    },
    // Gives the frames of the answer to `got`. Returns what the end says, or undefined if another answer is to be read.
    read: async (got) => {
      const wanted = url, looking = setInterval(() => wanted === url && look(), LOOK_MS);
      let end;
      while (wanted === url && !end) {
        end = await readOnce(wanted, got);
        if (wanted === url && !end) await wait(polls ? POLL_MS : RETRY_MS);
      }
      clearInterval(looking);
      if (wanted !== url) return undefined;
      url = "";
      hear();
      return end;
    },
  };
}

// Says plainly that the browser is offline, or for how long the server has not answered. Without a network it holds back
// what could not be sent, so that it stays in the composer; without the server, the queue keeps it. A Stop and everything
// else that asks the server wait until it can be reached again. It comes before all modules that send the message.
function tellOffline() {
  const STOP = "#composer .stop-button";
  const note = make("p", { id: "offline", role: "status" }), counted = make("span", { "aria-hidden": "true" });
  let away = false, next;
  let silent = null; // for how many seconds the server has not answered, while the page reads an answer
  let running, unwanted; // the answer that is being written, and the one that the visitor stopped meanwhile
  const isSilent = () => silent !== null;
  const say = (offline, noAnswer) => {
    if (away || !isSilent()) note.replaceChildren(...(away ? [offline] : []));
    else note.replaceChildren(noAnswer, counted);
  };
  const sayState = () => say(said.offline, said.silent), sayWaits = () => say(said.offline_waits, said.silent_waits);
  document.addEventListener("server-silent", ({ detail: seconds }) => {
    const before = isSilent();
    silent = seconds;
    counted.textContent = `${seconds} s`;
    if (isSilent() === before) return;
    sayState();
    stopLate();
  });
  // A server on the same computer can be reached without a network, so the page asks it, and again until there is one.
  const look = async () => {
    clearTimeout(next);
    const isReached = navigator.onLine || (await reaches());
    away = !isReached && !navigator.onLine;
    sayState();
    if (away) return;
    stopLate();
    if (!navigator.onLine) next = setTimeout(look, RETRY_MS);
  };
  // Events, and what a button of the chat asks of a route, go in the order in which they occurred.
  let last = /** @type {Promise<any>} */ (Promise.resolve()), waiting = 0;
  const inTurn = async (isOfTimer, go) => {
    if (navigator.onLine && !isSilent() && !waiting) return go();
    const isMine = (navigator.userActivation?.isActive ?? true) && !isOfTimer; // of the visitor
    const sayMine = () => isMine && sayWaits();
    const earlier = last;
    let gone = (/** @type {any} */ _) => {};
    last = new Promise((then) => (gone = then));
    waiting++;
    try {
      sayMine();
      await earlier;
      while (!(await reaches())) {
        sayMine();
        await new Promise((then) => setTimeout(then, RETRY_MS));
      }
      return await go();
    } finally {
      waiting--;
      gone(undefined);
    }
  };
  holdEvents(inTurn);
  // A browser can be online a moment before the server can be reached, and Gradio would lose a Stop that fails.
  const stopLate = async () => {
    if (!unwanted || away || isSilent()) return;
    if (!(await reaches())) return void setTimeout(stopLate, RETRY_MS);
    const button = $(STOP), answer = unwanted;
    unwanted = undefined;
    button?.removeAttribute("aria-disabled");
    if (answer && answer === running) button?.click();
  };
  document.addEventListener("chat-view", ({ detail }) => (running = detail.live));
  when("#dock", (dock) => {
    dock.before(note);
    look();
  });
  for (const change of ["online", "offline"]) addEventListener(change, look);

  const holdBack = (event) => {
    if (!away) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    note.textContent = said.offline_kept;
    box()?.focus();
  };
  addEventListener("keydown", (event) => {
    if (sends(event) && event.target === box()) holdBack(event);
  }, true);
  document.addEventListener("click", (event) => event.target.closest?.("#composer .submit-button") && holdBack(event), true);
  // Escape clicks the button, too.
  document.addEventListener("click", (event) => {
    const button = (away || isSilent()) && event.target.closest?.(STOP);
    if (!button) return;
    unwanted = running;
    if (!unwanted) return; // a message is being sent, and this gives it up
    event.preventDefault();
    event.stopImmediatePropagation();
    button.setAttribute("aria-disabled", "true");
    sayWaits();
  }, true);
  return inTurn;
}
