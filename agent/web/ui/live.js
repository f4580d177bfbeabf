// Shows the conversation: the stored turns, and the one whose answer is being written, of which it gets edits. The
// modules in `transcript` draw them.
({ said, $, box, when, hint, root, modules, language, stream, conversation, ask }) => {
  const REFRESH_MS = 5000, RETRY_MS = 1000;

  let stored = []; // the stored turns, without the one that is being written
  let written; // that turn
  let upcoming; // the stored turns, while those before are shown until the first frame of an answer that is written again
  let transcript; // what draws the turns, once its module is loaded
  let isAsked = false; // this page asked for the answer that begins next
  let refreshing;
  let over = ""; // the URL of the answer whose end was read last
  let isWhole = false; // the page has the first turn of the chat
  let hasEarlier = false; // the server has turns before those that it has sent last
  let confirmed; // the answer after whose beginning the server was asked for a view

  const turns = () => (written ? [...stored, written] : stored);
  const lastMessage = () => turns().findLast(({ bubbles }) => bubbles[0]?.kind === "user")?.id ?? "";
  const draw = (isNew = false) => {
    page.turns = turns();
    const { dataset } = document.documentElement;
    if (written) dataset.running = "";
    else delete dataset.running;
    transcript?.show(page.turns, { hasEarlier: hasEarlier && !isWhole, isNew });
  };
  const drawEdits = (edits) => {
    written = transcript.apply(edits, written.id);
    page.turns = turns();
  };
  // Reads an answer. The server sends about eight frames of it a second, and each is drawn at once.
  const follow = async (url, isMine) => {
    await mounted;
    if (!stream.reads(url)) return; // another chat was opened meanwhile
    let isNew = isMine;
    const shown = page.conversation, end = await stream.read((frames) => {
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
    announce();
    const isLast = page.conversation === shown && !stream.reading(), lacks = !isWhole && !hasEarlier;
    if (end.stored && isLast && written && !lacks) settle(end.complete);
    else refresh();
  };
  // The page shows the turn as it is stored. Another message can be sent, and nothing has to be asked for.
  const settle = (complete) => {
    clearTimeout(refreshing);
    [stored, written] = [[...stored, written], undefined];
    draw();
    stream.watch(false);
    $("#free")?.click();
    tell({ conversation: page.conversation, turns: page.turns, live: "", complete, guest: "", missing: "", hidden: "" });
  };
  const tell = (detail) => document.dispatchEvent(new CustomEvent("chat-view", { detail }));
  // Asks for the view after a message, or after an end that is not stored, until the page has it. It comes through
  // Gradio's queue, and is lost if the process that has the event ends first, or if another one serves the page's next
  // requests.
  const refresh = () => {
    refreshLater();
    $("#refresh")?.click();
  };
  const refreshLater = () => {
    clearTimeout(refreshing);
    refreshing = setTimeout(refresh, REFRESH_MS);
    stream.watch(true);
  };
  document.addEventListener("message-sent", refreshLater);
  document.addEventListener("answer-asked", () => stream.watch(true));
  for (const kind of ["message-sent", "answer-asked"]) document.addEventListener(kind, () => (isAsked = true));
  document.addEventListener("message-found", () => transcript?.stay());

  // While the visitor looks at another tab, the title of this one says that the answer has ended.
  let title;
  const announce = () => {
    if (!document.hidden) return;
    title ??= document.title;
    const asks = written?.buttons?.some(({ value }) => value.do === "answer");
    document.title = `${asks ? said.answer_asks : said.answer_ready} · ${title}`;
  };
  document.addEventListener("visibilitychange", () => {
    if (document.hidden || title === undefined) return;
    document.title = title;
    title = undefined;
  });
  const entitle = (text) => {
    if (title === undefined) document.title = text;
    else title = text;
  };

  // Drops the oldest turns if there are many more bubbles than the window of the server has.
  const newest = (all, most) => {
    let count = all.reduce((sum, { bubbles }) => sum + bubbles.length, 0), first = 0;
    if (count > 2 * most) while (count > most && first < all.length - 1) count -= all[first++].bubbles.length;
    return first ? all.slice(first) : all;
  };
  // The turns, after the older ones that the page has. A message has the same ones before it as long as it has its id.
  const withOlder = (given, all) => {
    const first = all.findIndex(({ id }) => id === given[0]?.id);
    return first > 0 ? [...all.slice(0, first), ...given] : given;
  };

  // Asks for older turns, once for each length of the chat.
  let asked = 0;
  const earlier = ({ isClicked = false } = {}) => {
    if (!hasEarlier || isWhole || (asked === stored.length && !isClicked)) return;
    asked = stored.length;
    $("#earlier")?.click();
  };

  // Views can overtake each other. An old view names an answer whose end was read, or does not name the one that is being
  // read. It is not shown, and the server is asked again.
  const isOld = ({ live, turns: given, conversation: id }) => {
    const reads = stream.reading();
    if (id !== page.conversation) return false;
    return live ? live === over : Boolean(given && reads && reads !== confirmed);
  };

  // Shows a view of the server. Without turns, the view adds a turn to what is shown. No view: there is no chat yet.
  const show = (view) => {
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
    const { turns: given, live, window: most, conversation: id, missing } = view;
    const isNext = id !== page.conversation, before = isNext ? [] : turns();
    const left = page.conversation, unsent = isNext && transcript?.leave();
    if (isNext) asked = 0;
    page.conversation = id;
    tell(view);
    if (unsent) window.chats.keep(left, unsent);
    if (missing && !given) return; // the page is empty already
    const same = stream.reads(live);
    if (!same) stream.turnTo(live);
    if (!same || !live) written = undefined;
    upcoming = undefined;
    if (!given) stored = newest(before.filter((turn) => turn !== written), most);
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
    if (isOpened) document.dispatchEvent(new Event("chat-opened"));
    if (begins) follow(live, isMine);
  };

  // What a button of the transcript does: it names a message and a text or a value, and clicks one of Gradio's buttons.
  const act = (name, id, value = "") => {
    act.named = [id, value];
    $(`#${name}`)?.click();
  };
  act.named = ["", ""];
  act.edited = (isAccepted) => {
    transcript?.edited(isAccepted);
    if (isAccepted) box()?.focus();
  };
  // The text of a message or an answer, as it was written.
  const textOf = async (id, part = "answer") => (await ask(`/${conversation()}/messages/${encodeURIComponent(id)}/text`))[part];
  const page = { turns: [], conversation: "", show, earlier, entitle, act, textOf, lastMessage, isReading: () => Boolean(stream.reading()), expect: stream.expect };
  window.live = page;

  const mounted = new Promise((done) => when("#chat", async (element) => {
    const module = await import(new URL(`${root}/assets/${modules}/transcript.js`, location)).catch(console.error);
    if (!module) return void document.dispatchEvent(new Event("transcript-lost"));
    const actions = ["copy", "edit", "retry", "retry-with", "undo", "branch"];
    transcript = page.transcript = module.mount(element, { labels: said.transcript, language, actions, textOf });
    const on = (name, then) => element.addEventListener(`transcript:${name}`, ({ detail }) => then(detail));
    on("earlier", earlier);
    on("end", () => box()?.focus());
    on("away", ({ isAway }) => document.documentElement.toggleAttribute("data-away", isAway));
    on("choose", ({ turn, value }) => act("choose", turn, JSON.stringify(value)));
    on("retry", ({ turn }) => act("retry", turn));
    on("undo", ({ turn }) => act("undo", turn));
    on("edit", ({ turn, text }) => act("edit", turn, text));
    on("unsent", ({ text }) => window.chats.keep(page.conversation, text));
    on("failed", ({ text }) => hint(text));
    on("version", ({ message, part }) => {
      if (part === "message") transcript.stay(); // the question stays where it is, however long what follows it is
      act("version", message);
    });
    on("branch", ({ turn }) => {
      page.copied = page.conversation;
      act("copy-branch", turn);
    });
    draw();
    transcript.toEnd();
    done();
    document.dispatchEvent(new CustomEvent("transcript-ready", { detail: transcript }));
  }));
  document.addEventListener("message-sent", () => (page.copied = ""));
  document.addEventListener("own-data-deleted", () => transcript?.leave());
  document.addEventListener("click", ({ target }) => {
    const example = target.closest?.("#examples .example");
    if (example) act("example", "", example.value);
  });
}
