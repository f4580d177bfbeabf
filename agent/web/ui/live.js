// Shows the conversation: the stored turns, and the one whose answer is being written, of which it gets edits. The
// modules in `transcript` draw them.
({ call, said, $, box, when, hint, mount, language, stream, conversation, ask, files: { fileOf } }) => {
  const REFRESH_MS = 5000, RETRY_MS = 1000, WINDOW = 30, MOST_TOKENS = 10_000_000, REFUSAL_S = 10;

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
    window.composer.free();
    tell({ conversation: page.conversation, turns: page.turns, live: "", complete, guest: "", missing: "", hidden: "" });
  };
  const tell = (detail) => document.dispatchEvent(new CustomEvent("chat-view", { detail }));
  // Asks for the view after a message, or after an end that is not stored, until the page has it. It comes through
  // Gradio's queue, and is lost if the process that has the event ends first, or if another one serves the page's next
  // requests.
  const refresh = () => {
    refreshLater();
    call("refresh");
  };
  const refreshLater = () => {
    clearTimeout(refreshing);
    refreshing = setTimeout(refresh, REFRESH_MS);
    stream.watch(true);
  };
  document.addEventListener("message-sent", () => {
    isAsked = true;
    refreshLater();
  });
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
    const id = page.conversation, first = stored[0]?.id;
    if (!first || !hasEarlier || isWhole || (asked === first && !isClicked)) return;
    asked = first;
    const older = await ask(`/${id}?format=blocks&before=${first}&bubbles=${Math.max(WINDOW, bubblesOf(stored))}`).catch(({ message }) => void hint(message));
    if (!older || page.conversation !== id || stored[0]?.id !== first) return;
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
    const { turns: given, live, conversation: id, missing } = view;
    const isNext = id !== page.conversation, before = isNext ? [] : turns();
    const left = page.conversation, unsent = isNext && transcript?.leave();
    if (isNext) [asked, most] = ["", WINDOW];
    page.conversation = id;
    tell(view);
    if (unsent) window.chats.keep(left, unsent);
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
    if (isOpened) document.dispatchEvent(new Event("chat-opened"));
    if (begins) follow(live, isMine);
  };

  // The settings that the page shows, in the form of the routes. Gradio tells them whenever they change.
  let shown = [];
  document.addEventListener("settings-shown", ({ detail }) => (shown = detail));
  const settings = () => {
    if (!shown.length) return {}; // those that the server remembers
    const [model, system_message, isReasoning, effort, temperature, limit, tools, extract_text] = shown;
    const reasoning = Boolean(isReasoning) && (effort || true), max_tokens = limit >= 1 ? Math.trunc(Math.min(limit, MOST_TOKENS)) : null;
    return { model: model ?? "", system_message: system_message ?? "", reasoning, temperature, max_tokens, tools: Boolean(tools), extract_text: Boolean(extract_text) };
  };
  // Asks a route about the chat that is shown, and shows what has become of it. Returns its answer, or undefined if it was
  // refused: then its sentence says why.
  const pending = new Set();
  const act = async (path, { method = "POST", body, isAnswered = false, stays = true } = {}) => {
    const id = page.conversation;
    if (pending.has(path)) return undefined; // a double click
    pending.add(path);
    if (isAnswered) {
      isAsked = true;
      stream.watch(true);
    }
    const answer = await ask(`/${id}${path}`, { method, body }).catch(({ message }) => void hint(message, undefined, REFUSAL_S));
    pending.delete(path);
    if (page.conversation === id && (stays || !answer)) refresh();
    return answer;
  };
  const about = (id) => `/messages/${encodeURIComponent(id)}`;
  const answered = (path, body, method) => act(path, { method, body: { settings: settings(), ...body }, isAnswered: true });
  const actions = {
    retry: (id) => answered(`${about(id)}/retry`),
    // The composer keeps its own model, and what it shows of that one need not be what the visitor has set.
    retryWith: (id, model) => answered(`${about(id)}/retry`, { settings: { model, system_message: settings().system_message } }),
    version: (id) => act(`${about(id)}/show`),
    choose: async ({ do: kind, entry, run, call, text }) => {
      if (kind === "retry") return actions.retry(entry);
      if (kind === "answer") return answered("/messages", { text, question: { run, call } });
      const answer = await answered(`${about(entry)}/continue`);
      if (answer?.asked) hint(said.continued.replace("{model}", () => $("#model-name")?.textContent.trim()));
    },
    edit: async (id, text) => {
      const isAccepted = Boolean(await answered(about(id), { text }, "PATCH"));
      transcript?.edited(isAccepted);
      if (isAccepted) box()?.focus();
    },
    undo: async (id) => {
      const value = await act(about(id), { method: "DELETE" });
      if (value) window.composer.undone({ text: value.text, files: value.files.map(fileOf) });
    },
    branch: async (id) => {
      const copy = await act(`${about(id)}/copy`, { stays: false });
      if (copy) window.chats.copied(copy.conversation);
    },
  };
  // The text of a message or an answer, as it was written.
  const textOf = async (id, part = "answer") => (await ask(`/${conversation()}${about(id)}/text`))[part];
  const page = { turns: [], conversation: "", show, earlier, entitle, actions, textOf, lastMessage, isReading: () => Boolean(stream.reading()), expect: stream.expect };
  window.live = page;

  const mounted = new Promise((done) => when("#chat", (element) => {
    const buttons = ["copy", "edit", "retry", "retry-with", "undo", "branch"];
    transcript = page.transcript = mount(element, { labels: said.transcript, language, actions: buttons, textOf });
    const on = (name, then) => element.addEventListener(`transcript:${name}`, ({ detail }) => then(detail));
    on("earlier", earlier);
    on("end", () => box()?.focus());
    on("away", ({ isAway }) => document.documentElement.toggleAttribute("data-away", isAway));
    on("choose", ({ value }) => actions.choose(value));
    on("retry", ({ turn }) => actions.retry(turn));
    on("undo", ({ turn }) => actions.undo(turn));
    on("edit", ({ turn, text }) => actions.edit(turn, text));
    on("unsent", ({ text }) => window.chats.keep(page.conversation, text));
    on("failed", ({ text }) => hint(text));
    on("version", ({ message, part }) => {
      if (part === "message") transcript.stay(); // the question stays where it is, however long what follows it is
      actions.version(message);
    });
    on("branch", ({ turn }) => actions.branch(turn));
    draw();
    transcript.toEnd();
    done();
    document.dispatchEvent(new CustomEvent("transcript-ready", { detail: transcript }));
  }));
  document.addEventListener("own-data-deleted", () => transcript?.leave());
  document.addEventListener("click", ({ target }) => {
    const example = target.closest?.("#examples .example");
    if (!example) return;
    page.example = example.value;
    call("example");
  });
}
