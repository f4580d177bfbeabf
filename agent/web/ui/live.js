// Shows the conversation: the stored messages, and the answer that is being written, of which it gets edits.
//
// A chatbot costs as much as it shows each time it changes. So the answer that is being written is shown in chatbots of
// its own, and a long text in pieces. The last chatbot has what grows, and the others change rarely. At the end, the
// first chatbot gets everything, as after a reload.
({ said, $, frame, division, stream, handover, unchanged }) => {
  const DRAW_MS = 125, REFRESH_MS = 5000, RETRY_MS = 1000;

  const page = { messages: [], shown: [[], [], []], conversation: "", show, earlier, draw: render, entitle, isReading, expect: stream.expect };
  let stored = [], written = [], ended = []; // the stored messages, those of the turn that is being written, and of the last one
  let upcoming; // the stored messages, while an answer that goes on is shown until its first frame is there
  let ending; // while the first chatbot gets the messages of the others: what it shows, and what they show at last
  let drawn = -Infinity, drawing, refreshing;
  let over = ""; // the URL of the answer whose end was read last
  let isWhole = false; // the page has the first message of the chat
  let confirmed; // the answer after whose beginning the server was asked for a view
  let { props } = unchanged; // what the chatbots get with their first messages

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
  const mark = (running) => {
    const { dataset } = $("#chat");
    if (running === undefined) delete dataset.running;
    else if (dataset.running !== running) dataset.running = running; // the same value again would have Chromium style the chat again
  };
  // Called by Gradio. A chatbot that gets undefined stays as it is.
  function render() {
    const before = page.shown;
    page.shown = ending ? [ending.shown, ...(ending.others ?? before.slice(1))] : [division.settled(stored), ...division.divide(written)];
    if (!ending) mark(written.length ? (stored.length ? "after" : "first") : undefined);
    const changed = page.shown.map((list, n) =>
      list.length === before[n].length && list.every((message, at) => message === before[n][at]) ? undefined : unchanged.list(list));
    if (!ending && changed[1]) handover.keepFolds();
    if (changed[0] || changed[1]) setTimeout(() => window.addressed.held(page.shown)); // no visitor's message grows
    if (!props) return changed;
    const once = props;
    props = undefined;
    return changed.map((value) => ({ ...once, ...(value && { value }) }));
  }

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

  const take = (frames) => {
    frames.forEach(apply);
    if (frames.length) drawSoon(frames.every(({ edits }) => edits?.every(([kind]) => kind === "append") ?? false));
  };
  const handOver = async () => {
    const messages = written;
    draw(); // the end of the text does not wait for the first chatbot
    await frame();
    if (written !== messages) return; // something else is shown meanwhile
    const before = division.settled(stored), mine = (ending = { shown: before });
    [stored, written] = [[...stored, ...written], []];
    const show = (some) => {
      mine.shown = [...before, ...some];
      draw();
    };
    const drop = () => {
      mine.others = division.less(page.shown[1]);
      draw();
      return mine.others[0].length > 0;
    };
    await handover.handOver(messages, show, drop, () => ending === mine);
    if (ending && ending !== mine) return; // of a later answer
    if (!ending) handover.reveal(); // something else was shown meanwhile
    ending = undefined;
    draw();
  };
  const follow = async (url) => {
    const { conversation } = page, end = await stream.read(take);
    if (!end) return;
    over = url;
    ended = written;
    announce();
    await handOver();
    const isLast = page.conversation === conversation && !stream.reading(), lacks = !isWhole && !$("#earlier")?.checkVisibility();
    if (end.stored && isLast && !lacks) settle(end.complete);
    else refresh();
  };
  // The page shows the turn as it is stored. Another message can be sent, and nothing has to be asked for.
  const settle = (complete) => {
    clearTimeout(refreshing);
    stream.watch(false);
    $("#free")?.click();
    const detail = { conversation: page.conversation, messages: page.messages, live: "", complete, guest: "", missing: "" };
    document.dispatchEvent(new CustomEvent("chat-view", { detail }));
  };
  // Asks for the view after a message, or after an end that is not stored, until the page has it. It comes through
  // Gradio's queue, and is lost if the process that has the event ends first, or if another one serves the page's next
  // requests.
  function refresh() {
    refreshLater();
    $("#refresh")?.click();
  }
  function isReading() {
    return Boolean(stream.reading());
  }
  function refreshLater() {
    clearTimeout(refreshing);
    refreshing = setTimeout(refresh, REFRESH_MS);
    stream.watch(true);
  }
  document.addEventListener("message-sent", refreshLater);
  document.addEventListener("answer-asked", () => stream.watch(true));

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
  function entitle(text) {
    if (title === undefined) document.title = text;
    else title = text;
  }

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

  // The messages, after the older ones that the page has, if they go on with those. The same list if none is new.
  const withOlder = (messages, all) => {
    const wanted = messages.map((one) => JSON.stringify(one));
    const first = all.findLastIndex((one) => JSON.stringify(one) === wanted[0]), common = all.slice(first);
    if (first < 0 || !common.every((one, n) => JSON.stringify(one) === wanted[n])) return messages;
    return common.length < messages.length ? [...all, ...messages.slice(common.length)] : all;
  };

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
    const shown = page.conversation, row = () => rows().at(first - before.length);
    const place = () => row().getBoundingClientRect().top + log.scrollTop;
    const anchors = log.style.overflowAnchor;
    log.style.overflowAnchor = "none"; // the browser must not move it, too
    let last = place();
    const keep = () => {
      if (page.conversation !== shown || !row()) return; // another chat came meanwhile
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

  // Views can overtake each other. An old view names an answer whose end was read, or does not name the one that is being
  // read. It is not shown, and the server is asked again.
  const isOld = ({ live, messages, conversation }) => {
    const reads = stream.reading();
    if (conversation !== page.conversation) return false;
    return live ? live === over : Boolean(messages && reads && reads !== confirmed);
  };

  // Shows a view of the server. Without messages, the view adds a turn to what is shown. No view: there is no chat yet.
  function show(view) {
    if (view && window.chats?.isLate(view)) return;
    clearTimeout(refreshing);
    if (view && isOld(view)) {
      const reads = stream.reading();
      refreshing = setTimeout(() => {
        confirmed = reads;
        refresh();
      }, RETRY_MS);
      return;
    }
    stream.watch(false);
    if (!view) return void document.dispatchEvent(new Event("chat-none"));
    const { messages, live, window: most, conversation, missing, earlier: isCut } = view;
    // The empty view of a new chat can be missed: the view of its first message, without any messages, overtakes it.
    const before = conversation === page.conversation ? page.messages : [];
    const isNext = conversation !== page.conversation, isOther = messages && isNext;
    if (isOther) asked = 0;
    page.conversation = conversation;
    document.dispatchEvent(new CustomEvent("chat-view", { detail: view }));
    if (missing && !messages) return; // the page is empty already
    const same = stream.reads(live);
    if (!same) {
      stream.turnTo(live);
      written = [];
    }
    upcoming = live && !stream.hasBegun() && messages && isBeforeLastTurn(messages, before) ? messages : undefined;
    if (upcoming) stored = before;
    else if (!messages) stored = newest(before, most);
    else stored = live ? messages : withOlder(messages, before);
    // The page can have turns before those that the server has sent. Without messages, a chat is new.
    if (messages && (upcoming || stored === messages)) isWhole = !isCut;
    else isWhole = isNext || (isWhole && stored[0] === before[0]);
    document.documentElement.toggleAttribute("data-whole", isWhole);
    const left = !written.length && !ending && page.shown.slice(1).some(({ length }) => length);
    if (stored !== page.messages || left) {
      ending = undefined;
      const old = page.shown[0], all = division.settled(stored);
      if (old.length && all.length > old.length && isEnd(old, all)) keepPlace();
      draw();
    }
    if (isOther) document.dispatchEvent(new Event("chat-opened"));
    if (live && !same) follow(live);
  }

  window.live = page;
}
