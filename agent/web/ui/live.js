// Shows the conversation: the stored messages, and the answer that is being written, which it reads from the server as
// a stream of edits. It continues a broken stream after its last frame. If a proxy holds the stream back, it polls.
//
// A chatbot costs as much as it shows each time it changes. So the answer that is being written is shown in chatbots of
// its own, and a long text in pieces. The last chatbot has what grows, and the others change rarely. At the end, the
// first chatbot gets everything, as after a reload.
({ said, $, pieces }) => {
  const FIRST_MS = 3000; // the first bytes of a stream come at once, unless something holds them back
  const SILENCE_MS = 35000; // the server sends something every 15 seconds
  const RETRY_MS = 1000, POLL_MS = 700, DRAW_MS = 100;
  const SEAM = '<div class="seam"></div>';

  const page = { messages: [], shown: [[], [], []], show, earlier, draw: render };
  let stored = [], written = [], ended = []; // the stored messages, those of the turn that is being written, and of the last one
  let upcoming; // the stored messages, while an answer that goes on is shown until its first frame is there
  let ending; // set while the first chatbot gets the messages of the others
  let url = "", last = "", reader; // what is read, the id of its last frame, and the running request
  let polls = false, drawn = -Infinity, drawing;

  const draw = () => {
    clearTimeout(drawing);
    drawing = undefined;
    drawn = performance.now();
    page.messages = [...stored, ...written];
    $("#redraw")?.click();
  };

  // A message as the pieces in which it is shown. Unchanged pieces are the same objects as before.
  let cut = []; // the pieces of each written message
  const inPieces = (message, number) => {
    const before = cut[number];
    if (before?.message === message) return before.shown;
    const texts = [], [{ text }] = message.content;
    if (message.role === "assistant" && !message.metadata && text) {
      let at = 0;
      for (const one of before?.texts.slice(0, -1) ?? []) {
        if (!text.startsWith(one, at)) break;
        texts.push(one);
        at += one.length;
      }
      for (let length; (length = pieces.end(text.slice(at))); at += length) texts.push(text.slice(at, at + length));
      texts.push(text.slice(at));
    }
    const end = texts.length - 1;
    const shown = end < 1 ? [message] : texts.map((one, n) => {
      if (n < end && n < before?.texts.length - 1 && before.texts[n] === one) return before.shown[n];
      const framed = [n ? SEAM : "", one, n < end ? SEAM : ""].filter(Boolean).join("\n\n");
      return { ...message, content: [{ type: "text", text: framed }], options: n < end ? null : message.options };
    });
    cut[number] = { message, texts, shown };
    return shown;
  };
  // The number of the first message that is likely to change: the last one, or an earlier call without a result.
  const firstOpen = () => {
    let first = Math.max(written.length - 1, 0);
    while (first > 0 && written[first].content[0]?.text?.startsWith('<div class="')) first--; // what follows a text
    if (written[first]?.role === "user") return first + 1;
    const called = written.findIndex(({ metadata }) => metadata?.status === "pending");
    if (called >= 0) first = Math.min(first, called);
    for (let n = written.length - 1; n >= first; n--) {
      const parent = written[n].metadata?.parent_id;
      const holder = parent ? written.findIndex(({ metadata }) => metadata?.id === parent) : n;
      if (holder >= 0) first = Math.min(first, holder);
    }
    return first;
  };
  // What each chatbot is to show.
  const lists = () => {
    const first = firstOpen();
    const closed = written.slice(0, first).flatMap(inPieces);
    const open = written.slice(first).flatMap((message, n) => (n ? [message] : inPieces(message, first)));
    if (open.length) closed.push(...open.splice(0, cut[first].shown.length - 1));
    cut.length = written.length;
    return [stored, closed, open];
  };
  const frame = () => new Promise((done) => {
    const hidden = setTimeout(done, 100); // a hidden page has no frames
    requestAnimationFrame(() => (clearTimeout(hidden), done()));
  });
  // A message that moves to another chatbot is drawn anew. Folds that the visitor opened or closed are turned again.
  const folds = (chatbots) => [...document.querySelectorAll(`#chat ${chatbots} .thought-group .title`)];
  const isOpen = (title) => title.classList.contains("expanded");
  const turned = (titles) =>
    titles.map((title) => (isOpen(title) === Boolean($(".loading-spinner", title)) ? undefined : isOpen(title)));
  const turn = async (titles, wanted) => {
    const wrong = [...wanted.entries()].filter(([n, open]) => open !== undefined && titles[n] && open !== isOpen(titles[n]));
    for (const [n] of wrong) titles[n].click();
    for (let frames = 0; wrong.length && frames < 3; frames++) { // Gradio slides them open, from the next frame on
      for (const [n] of wrong) {
        for (const sliding of titles[n].parentElement.getAnimations({ subtree: true })) sliding.finish();
      }
      await frame();
    }
  };
  // Called by Gradio. A chatbot that gets undefined stays as it is.
  function render() {
    const before = page.shown;
    page.shown = ending ? [stored, ...before.slice(1)] : lists();
    if (!ending && written.length) $("#chat").dataset.running = stored.length ? "after" : "first";
    else if (!ending) delete $("#chat").dataset.running;
    const changed = page.shown.map((list, n) =>
      list.length === before[n].length && list.every((message, at) => message === before[n][at]) ? undefined : list);
    if (!ending && changed[1]) {
      const wanted = turned(folds("#running"));
      requestAnimationFrame(() => turn(folds("#running"), wanted));
    }
    return changed;
  }
  // Gradio draws a text some time after its message. No text stays empty.
  const drawnFully = async (is) => {
    for (let frames = 0; frames < 30; frames++) {
      await frame();
      if (is() && !$("#chat > .block .md:empty")) return;
    }
  };
  // Gives everything to the first chatbot. Formulas and opened folds are drawn late: then it is shown there only once it
  // is drawn, so that nothing flickers.
  const handOver = async () => {
    const chat = $("#chat"), first = $("#chat > .block"), texts = () => first.querySelectorAll(".md").length;
    const wanted = turned(folds("#running")), count = texts(), mine = (ending = {});
    const late = wanted.some((open) => open !== undefined) || /\$\$|\\[[(]|\u2063/.test(JSON.stringify(written));
    [stored, written] = [[...stored, ...written], []];
    if (!late) {
      ending = undefined;
      return draw();
    }
    chat.style.setProperty("--shown", `${first.offsetHeight}px`);
    chat.toggleAttribute("data-ending", true);
    draw();
    await drawnFully(() => texts() > count);
    if (ending === mine) await turn(folds("> .block").slice(-wanted.length || Infinity), wanted);
    if (wanted.some(Boolean)) await drawnFully(() => true);
    if (ending === mine) ending = undefined;
    if (ending) return; // of a later answer
    chat.removeAttribute("data-ending");
    delete chat.dataset.running;
    draw();
  };
  // Growing text waits for the next regular draw. Anything else, such as the first text, is drawn at once.
  const drawSoon = (grows) => {
    if (grows) drawing ??= setTimeout(draw, drawn + DRAW_MS - performance.now());
    else draw();
  };

  // A frame has all messages of the turn, or edits of them. Changed messages are new objects.
  const apply = ({ messages, edits = [] }) => {
    if (messages) [written, stored, upcoming] = [messages, upcoming ?? stored];
    for (const [kind, n, value, removed = 0] of edits) {
      if (kind === "cut") written = written.slice(0, n);
      else if (kind === "set") written = Object.assign([...written], { [n]: value });
      else {
        const [part] = written[n].content;
        const content = [{ ...part, text: part.text.slice(0, part.text.length - removed) + value }];
        written = Object.assign([...written], { [n]: { ...written[n], content } });
      }
    }
  };

  // Takes complete events from the text and returns the rest. Returns undefined after the end.
  const take = (text) => {
    const events = text.split("\n\n");
    const rest = events.pop();
    let grows = true;
    for (const event of events) {
      const field = Object.fromEntries(event.split("\n").map((line) => /^(\w*): ?(.*)$/s.exec(line)?.slice(1) ?? ["", ""]));
      if (field.event === "end") return undefined; // the caller draws
      if (!field.id) continue;
      const frame = JSON.parse(field.data);
      apply(frame);
      last = field.id;
      grows &&= frame.edits?.every(([kind]) => kind === "append") ?? false;
    }
    if (events.length) drawSoon(grows);
    return rest;
  };

  const wait = (ms) => new Promise((done) => setTimeout(done, ms));
  // A connection of before a break can look open for minutes.
  addEventListener("online", () => reader?.abort());
  const address = (wanted) => {
    const root = (window.gradio_config?.root ?? "").replace(/\/$/, "");
    return `${root}/${wanted}&after=${encodeURIComponent(last)}${polls ? "&wait=0" : ""}`;
  };
  // Reads one response. Returns true if the answer has ended.
  const readOnce = async (wanted) => {
    const request = (reader = new AbortController());
    let timer = setTimeout(() => {
      polls = true;
      request.abort();
    }, FIRST_MS);
    try {
      const response = await fetch(address(wanted), { signal: request.signal, cache: "no-store" });
      if (response.status === 404) return true; // it ended a while ago, and is stored
      if (response.status === 429) polls = true;
      if (!response.ok) return false;
      const pieces = response.body.getReader(), decoder = new TextDecoder();
      for (let text = "";;) {
        const { value, done } = await pieces.read();
        clearTimeout(timer);
        if (done || wanted !== url) return false;
        timer = setTimeout(() => request.abort(), SILENCE_MS);
        text = take(text + decoder.decode(value, { stream: true }));
        if (text === undefined) return true;
      }
    } catch {
      return false; // no network, or a break: it is read again
    } finally {
      clearTimeout(timer);
      request.abort();
    }
  };
  const read = async (wanted) => {
    while (wanted === url) {
      if (await readOnce(wanted)) {
        if (wanted !== url) return;
        url = "";
        ended = written;
        announce();
        await handOver();
        $("#refresh")?.click();
        return;
      }
      if (wanted === url) await wait(polls ? POLL_MS : RETRY_MS);
    }
  };

  // While the visitor looks at another tab, the title of this one says that the answer has ended.
  let title;
  const announce = () => {
    if (!document.hidden) return;
    title ??= document.title;
    const asks = ended.at(-1)?.options?.some(({ value }) => value.do === "answer");
    document.title = `${asks ? said.answer_asks : said.answer_ready} · ${title}`;
  };
  document.addEventListener("visibilitychange", () => {
    if (document.hidden || title === undefined) return;
    document.title = title;
    title = undefined;
  });

  // Drops the oldest turns if there are many more messages than the window of the server has.
  const newest = (messages, most) => {
    if (messages.length <= 2 * most) return messages;
    const first = messages.findIndex(({ role, metadata }, n) => n >= messages.length - most && role === "user" && metadata?.id);
    return first < 0 ? messages : messages.slice(first);
  };
  const isBeforeLastTurn = (messages, all) => {
    const first = all.findLastIndex(({ role, metadata }) => role === "user" && metadata?.id);
    return first >= 0 && isEnd(messages, all.slice(0, first));
  };
  const isEnd = (messages, all) => JSON.stringify(messages) === JSON.stringify(all.slice(-messages.length || all.length));

  // Asks for older turns, once for each length of the chat. page.js calls it when the reader comes near the first one.
  let asked = 0;
  function earlier() {
    const button = $("#earlier");
    if (asked === stored.length || !button?.checkVisibility()) return;
    asked = stored.length;
    button.click();
  }
  // What the reader looks at stays where it is while older turns come in above it.
  const keepPlace = async () => {
    const log = $("#chat"), rows = () => [...document.querySelectorAll("#chat .message-row")];
    const before = rows(), first = before.findIndex((row) => row.getBoundingClientRect().bottom > log.getBoundingClientRect().top);
    if (first < 0) return;
    const place = () => rows().at(first - before.length).getBoundingClientRect().top + log.scrollTop;
    const anchors = log.style.overflowAnchor;
    log.style.overflowAnchor = "none"; // the browser must not move it, too
    let last = place();
    const keep = () => {
      log.scrollTop += place() - last;
      last = place();
    };
    const sizes = new ResizeObserver(keep); // rows that come into view get their true height
    sizes.observe($("#chat > .block"));
    for (let frames = 0; frames < 30; frames++) {
      await frame();
      keep();
    }
    sizes.disconnect();
    if (log.style.overflowAnchor === "none") log.style.overflowAnchor = anchors;
  };

  // Gradio sets the direction of every message at each change, and Chromium then styles the whole message again.
  const dir = Object.getOwnPropertyDescriptor(HTMLElement.prototype, "dir");
  Object.defineProperty(HTMLElement.prototype, "dir", {
    ...dir,
    set(value) {
      if (value === "auto" || this.getAttribute("dir") !== value) dir.set.call(this, value);
    },
  });

  // Shows a view of the server. Without messages, the view adds a turn to what is shown.
  function show(view) {
    if (!view) return;
    const { messages, live, window: most } = view;
    const before = page.messages;
    const same = live && live === url;
    if (!same) {
      reader?.abort();
      [url, last, written] = [live, "", []];
    }
    upcoming = live && !last && messages && isBeforeLastTurn(messages, before) ? messages : undefined;
    if (upcoming) stored = before;
    else if (!messages) stored = newest(before, most);
    else if (live || !messages.length || !isEnd(messages, before)) stored = messages;
    else stored = before; // after an answer, older turns stay on the page
    const left = !written.length && !ending && page.shown.slice(1).some(({ length }) => length);
    if (stored !== before || left) {
      ending = undefined;
      const old = page.shown[0];
      if (old.length && stored.length > old.length && isEnd(old, stored)) keepPlace();
      draw();
    }
    if (live && !same) read(live);
  }

  window.live = page;
}
