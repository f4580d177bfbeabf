// Shows the conversation: the stored messages, and the answer that is being written, which it reads from the server as
// a stream of edits. It continues a broken stream after its last frame. If a proxy holds the stream back, it polls.
({ said, $ }) => {
  const FIRST_MS = 3000; // the first bytes of a stream come at once, unless something holds them back
  const SILENCE_MS = 35000; // the server sends something every 15 seconds
  const RETRY_MS = 1000, POLL_MS = 700, DRAW_MS = 100;

  const page = { messages: [], show };
  let stored = [], written = []; // the stored messages, and those of the turn that is being written
  let url = "", last = "", reader; // what is read, the id of its last frame, and the running request
  let polls = false, drawn = -Infinity, drawing;

  const draw = () => {
    clearTimeout(drawing);
    drawing = undefined;
    drawn = performance.now();
    page.messages = [...stored, ...written];
    $("#redraw")?.click();
  };
  // Growing text waits for the next regular draw. Anything else, such as the first text, is drawn at once.
  const drawSoon = (grows) => {
    if (grows) drawing ??= setTimeout(draw, drawn + DRAW_MS - performance.now());
    else draw();
  };

  // A frame has all messages of the turn, or edits of them. Changed messages are new objects.
  const apply = ({ messages, edits = [] }) => {
    if (messages) written = messages;
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
        draw();
        announce();
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
    const asks = written.at(-1)?.options?.some(({ value }) => value.do === "answer");
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
  const isEnd = (messages, all) => JSON.stringify(messages) === JSON.stringify(all.slice(-messages.length || all.length));

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
    if (!messages) stored = newest(before, most);
    else if (live || !messages.length || !isEnd(messages, before)) stored = messages;
    else stored = before; // after an answer, older turns stay on the page
    if (stored !== before) draw();
    if (live && !same) read(live);
  }

  window.live = page;
}
