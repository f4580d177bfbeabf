// Browser behaviour that Gradio lacks: copying only the answer, keyboard shortcuts, following an answer down the page,
// screen reader output, the seconds that a tool takes, and labels in the visitor's language. Nothing
// here scans the whole page on each token.
({ said, $, box, when, composes, soft, sends, frame, sources, division, unescaped }) => {
  const UNFOLD_FRAMES = 40; // Gradio slides a fold open
  const EMPTY = 20; // px below the last answer, and above a row that moves up
  const AROUND_BUTTON = 52; // px that the button to the end needs above the composer
  const NEAR_END = 160; // px of a last line with what is below it: they are shown too if the view moves anyway
  const last = (selector) => [...document.querySelectorAll(selector)].at(-1);
  const stop = () => $("#composer .input-row > .stop-button");
  // Gradio's label of a bubble has its whole text. No screen reader reads it: see `NAMES`.
  const text = (bubble) => sources.unmarked(bubble.getAttribute("aria-label") ?? "").replace(/^bot's message: /, "").replaceAll("\u2063", "");

  // The text of a question of the model, which is written as HTML. The hint below it is not part of it.
  const asked = (bubble) =>
    [...bubble.querySelectorAll(".asked, .asking > :not(.caption)")].map(({ textContent }) => textContent).join("\n\n");

  // What is copied is what was written, also where Gradio copies a message.
  const copy = navigator.clipboard?.writeText.bind(navigator.clipboard);
  if (copy) navigator.clipboard.writeText = (text) => copy(unescaped(text));

  // Gradio copies everything in the group, with reasoning, tool calls and captions. People want only the answer.
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("#chat .message-buttons button");
    const row = button?.closest(".message-buttons")?.previousElementSibling;
    if (!row?.classList.contains("bot-row") || button !== $("button", button.parentElement)) return;
    const texts = [...row.querySelectorAll('[data-testid="bot"]')]
      .filter((bubble) => !$(".thought-group, .caption:not(.asking *), .waiting, .problem, .citationlist", bubble))
      .map((bubble) => asked(bubble) || text(bubble));
    if (!texts.length) return;
    event.stopPropagation();
    event.preventDefault();
    navigator.clipboard.writeText(division.joined(texts));
    const say = (name, isCopied) => {
      button.setAttribute("aria-label", name);
      button.classList.toggle("copied", isCopied);
    };
    say("Copied message", true); // as Gradio does for the visitor's messages, and `label` translates it
    setTimeout(() => say("Copy message", false), 1200);
  }, true);

  // Keys. The window handles them before Gradio.
  const shortcuts = document.createElement("dialog");
  shortcuts.id = "shortcuts";
  shortcuts.setAttribute("aria-labelledby", "shortcuts-title");
  const rows = [["send", soft.matches ? "ctrl_enter" : "enter"], ["newline", soft.matches ? "enter" : "shift_enter"], ["stop", "escape"], ["edit", "up"], ["prompts", "slash"],
    ["new", "new"], ["help", "question", "help"]];
  shortcuts.innerHTML = `<h2 id="shortcuts-title">${said.shortcuts}</h2><dl>${rows.map(([does, ...keys]) =>
    `<dt>${keys.map((key) => `<kbd>${said["key_" + key]}</kbd>`).join(" ")}</dt><dd>${said["does_" + does]}</dd>`).join("")}</dl>` +
    `<form method="dialog"><button>${said.close}</button></form>`;
  document.body.append(shortcuts);
  const help = () => (shortcuts.open ? shortcuts.close() : shortcuts.showModal());
  shortcuts.addEventListener("click", (event) => event.target === shortcuts && shortcuts.close());
  document.addEventListener("click", (event) => event.target.closest?.("#help button") && help());

  const edit = (row) => {
    const button = [...(row?.nextElementSibling?.querySelectorAll("button:not(.version)") ?? [])].at(-1);
    if (!button || button.disabled) return false;
    if (!$("textarea.edit-textarea", row)) button.click(); // while it is edited, this button would cancel that
    when("#chat textarea.edit-textarea", (area) => {
      area.focus();
      area.setSelectionRange(area.value.length, area.value.length);
    });
    return true;
  };
  const editing = (event, area) => {
    const buttons = area.closest(".message-row").nextElementSibling?.querySelectorAll("button:not(.version)") ?? [];
    const isSent = sends(event);
    if (buttons.length < 2 || !(isSent || event.key === "Escape")) return;
    event.preventDefault();
    event.stopPropagation();
    buttons[isSent ? 0 : 1].click();
    box()?.focus();
  };
  // Does not send an empty message. A message waits in queue.js while an answer is being written.
  const holdBack = (event) => {
    const empty = !box().value.trim() && !$("#composer :is(.thumbnail-item, .loader, .recording-overlay)");
    const attaches = window.recording?.sends();
    if (!attaches && !empty && !stop() && !window.queue?.waits()) return;
    event.preventDefault();
    event.stopPropagation();
    if (!attaches && !empty && !box().readOnly) window.queue?.add();
    box().focus();
  };
  document.addEventListener("click", (event) => event.target.closest?.("#composer .submit-button") && holdBack(event), true);
  // After a click on something that is then disabled or removed, nothing has the focus, and after a choice in the
  // composer a button has it. What is typed next is meant for the box.
  const toBox = (event) => {
    const { key, altKey, ctrlKey, metaKey } = event;
    const types = (key.length === 1 && !" ?".includes(key) && !altKey && !ctrlKey && !metaKey) || composes(event);
    const pastes = key.toLowerCase() === "v" && (ctrlKey || metaKey);
    const active = document.activeElement, idle = active === document.body || active?.matches("#composer button, #chat .version");
    if (idle && (types || pastes) && !$("dialog[open]")) box()?.focus();
  };
  window.addEventListener("keypress", (event) => {
    if (event.key === "Enter" && event.target === box() && !sends(event)) event.stopPropagation(); // Gradio would send it
  }, true);
  window.addEventListener("keydown", (event) => {
    toBox(event);
    if (composes(event)) return;
    const area = event.target.closest?.("#chat textarea.edit-textarea");
    const typing = event.target.closest?.("input, textarea, select");
    if (area) editing(event, area);
    else if ($("dialog[open]:not(#shortcuts)")) return;
    else if ((event.key === "/" && (event.ctrlKey || event.metaKey)) || (event.key === "?" && !typing)) {
      event.preventDefault();
      help();
    } else if (shortcuts.open) return;
    else if (event.key === "Escape") {
      if (stop()) stop().click();
      else if ($("#settings.open")?.contains(event.target)) {
        $("#settings .toggle-button").click();
        $("#settings .toggle-button").focus();
      }
    } else if (event.key === "ArrowUp" && event.target === box() && !box().value && !stop()) {
      if (edit(last("#chat .user-row"))) event.preventDefault();
    } else if (sends(event) && event.target === box()) {
      holdBack(event);
      if (event.defaultPrevented || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault(); // not every browser has a keypress for it, on which Gradio sends
      $("#composer .submit-button")?.click();
    }
    else if (event.key === " " && event.target.matches?.('#chat [role="button"]')) {
      event.preventDefault(); // Gradio's folds react only to Enter
      event.target.click();
    }
  }, true);

  // The server checks attachments at once, so that the page shows how they are handled before they are sent.
  when("#composer", (composer) => {
    let seen = 0;
    const look = () => {
      const now = composer.querySelectorAll(".thumbnail-item").length;
      if (now === seen) return;
      seen = now;
      setTimeout(() => $("#look")?.click()); // the composer's value has it by then
    };
    new MutationObserver(look).observe(composer, { childList: true, subtree: true });
    // While a message is being sent, its text must not change.
    when("#sending", (panel) => new MutationObserver(() => {
      if (box()) box().readOnly = Boolean($("p", panel));
    }).observe(panel, { childList: true, subtree: true }));
  });
  // Shows the progress of uploads. Gradio uploads with fetch, which reports no progress.
  const fetched = window.fetch;
  window.fetch = (where, how) => {
    if (!(how?.body instanceof FormData) || !/\/upload\?upload_id=/.test(String(where))) return fetched(where, how);
    return new Promise((answer, fail) => {
      const request = new XMLHttpRequest();
      request.open(how.method, where);
      request.withCredentials = how.credentials === "include";
      new Headers(how.headers).forEach((value, name) => request.setRequestHeader(name, value));
      request.upload.addEventListener("progress", ({ loaded, total }) => {
        const done = `${Math.floor((100 * loaded) / total)} %`;
        for (const loader of document.querySelectorAll("#composer .loader")) {
          loader.dataset.done = done;
          loader.style.setProperty("--done", done.replace(" ", ""));
          loader.setAttribute("aria-valuenow", parseInt(done));
        }
      });
      request.addEventListener("load", () => answer(new Response(request.response, { status: request.status })));
      for (const bad of ["error", "abort", "timeout"]) {
        request.addEventListener(bad, () => fail(new TypeError("Failed to fetch")));
      }
      how.signal?.addEventListener("abort", () => request.abort());
      request.send(how.body);
    });
  };
  const count = (panel) => {
    let timer;
    const tick = () => {
      const doing = panel.querySelectorAll(".doing");
      for (const one of doing) {
        one.dataset.since ??= Date.now();
        const seconds = Math.floor((Date.now() - one.dataset.since) / 1000);
        if (seconds > 1) one.dataset.seconds = `${seconds} s`;
      }
      timer = doing.length ? setTimeout(tick, 500) : undefined;
    };
    new MutationObserver(() => (timer ??= setTimeout(tick))).observe(panel, { childList: true, subtree: true });
  };
  when("#attached", count);
  when("#sending", count);

  // Shows the seconds of a running tool or thought. The server adds those of a finished thought to its title.
  let wait;
  const sayWait = () => {
    const dots = last("#chat .bot-row .waiting:has(span)");
    if (!dots) return void (wait = undefined);
    const key = $("span", dots).textContent; // seconds before the page began to watch, and the number of the wait
    if (wait?.key !== key) wait = { key, since: Date.now() - 1000 * parseFloat(key) };
    const seconds = Math.floor((Date.now() - wait.since) / 1000);
    if (seconds >= 3) dots.dataset.waited = said.waited.replace("{seconds}", seconds);
  };
  const tick = () => {
    sayWait();
    for (const title of document.querySelectorAll("#chat .title[data-since]")) {
      if (!$(".loading-spinner", title)) {
        title.removeAttribute("data-since");
        title.removeAttribute("data-seconds");
      }
    }
    for (const spinner of document.querySelectorAll("#running .title .loading-spinner")) {
      const title = spinner.closest(".title");
      // The time before this page began to watch is in Gradio's own element, which is hidden meanwhile.
      title.dataset.since ??= Date.now() - 1000 * parseFloat($(".duration", title)?.textContent.match(/[\d.]+/)?.[0] ?? 0);
      const seconds = Math.floor((Date.now() - title.dataset.since) / 1000);
      if (seconds) title.dataset.seconds = `${seconds} s`;
    }
  };

  // Blocks wider than their bubble scroll there, so the keyboard must reach them. A block is redrawn when it changes.
  const wide = new ResizeObserver((all) => {
    for (const { target } of all) {
      if (!target.isConnected) wide.unobserve(target);
      else if (target.scrollWidth > target.clientWidth + 1 || target.scrollHeight > target.clientHeight + 1) target.tabIndex = 0;
      else target.removeAttribute("tabindex");
    }
  });
  const nameWide = (block) => {
    const table = block.matches("table");
    if (!table) block.setAttribute("role", "group");
    block.setAttribute("aria-label", table ? said.wide_table : block.matches("pre") ? said.wide_code : said.wide_formula);
    wide.observe(block);
  };
  const nameTask = (tick) => {
    const words = [...tick.parentElement.childNodes].filter((node) => !/^[OU]L$/.test(node.nodeName));
    const name = words.map((node) => node.textContent).join("").replace(/\s+/g, " ").trim();
    tick.setAttribute("aria-label", name || said.task);
  };
  // Numbers of more than two digits would be left of the text, on a phone outside the page.
  const makeRoom = (list) => {
    const { length } = String(list.start + list.childElementCount - 1);
    if (length > 2) list.style.setProperty("--digits", length);
  };
  // Gradio names a bubble by its whole text, with Markdown and HTML, and again at each token. A name by reference comes
  // before that one, so it is set once. A bubble can become one of the other author when another chat is opened.
  const NAMES = { bot: said.answer, user: said.your_message, caption: said.about_answer };
  for (const [name, textContent] of Object.entries(NAMES)) {
    document.body.append(Object.assign(document.createElement("span"), { id: `${name}-bubble`, hidden: true, textContent }));
  }
  const CAPTION = "[data-testid=bot][aria-labelledby=caption-bubble]"; // kinds.js has named it
  const UNNAMED = `[data-testid=bot]:not([role=article]:is(${CAPTION}, [aria-labelledby=bot-bubble])), [data-testid=user]:not([aria-labelledby=user-bubble])`;
  const nameBubbles = (root) => {
    for (const bubble of [...(root.matches?.(UNNAMED) ? [root] : []), ...(root.querySelectorAll?.(UNNAMED) ?? [])]) {
      bubble.setAttribute("role", "article");
      if (!bubble.matches(CAPTION)) bubble.setAttribute("aria-labelledby", `${bubble.dataset.testid}-bubble`);
      bubble.dir = "auto"; // Arabic runs from right to left, also on an English page
    }
  };
  const copied = new MutationObserver((changes) => changes.forEach(({ target }) => label(target))); // it has another name then
  // Adds ARIA attributes that Gradio's chat lacks: the role of bubbles and the names of what is in them.
  const mend = () => {
    nameBubbles($("#chat"));
    for (const block of document.querySelectorAll("#chat .prose :is(pre, table, .katex-display):not([aria-label])")) nameWide(block);
    sources.name();
    for (const list of document.querySelectorAll("#chat .prose ol:not([style])")) makeRoom(list);
    for (const tick of document.querySelectorAll("#chat .prose input[type=checkbox]:not([aria-label])")) nameTask(tick);
    for (const copy of document.querySelectorAll(`#chat .message-buttons [aria-label^="Cop"]:not([title="${said.labels["Copy message"]}"])`)) {
      label(copy);
      copied.observe(copy, { attributes: true, attributeFilter: ["aria-label"] });
    }
    $("#chat .examples")?.setAttribute("role", "group");
    $("#chat textarea.edit-textarea")?.setAttribute("aria-label", said.edited);
  };
  document.addEventListener("click", (event) => event.target.closest?.("#chat") && requestAnimationFrame(mend), true);

  // A screen reader hears finished sentences. Gradio's log would announce every token.
  const spoken = document.createElement("div");
  spoken.id = "spoken";
  spoken.className = "sr-only";
  spoken.setAttribute("aria-live", "polite");
  spoken.setAttribute("role", "status");
  document.body.append(spoken);
  const aloud = (markdown) => markdown.replace(/```\w*/g, " ").replace(/[*_`#|>~]+/g, " ").replace(/\s+/g, " ").trim();
  const sentences = (markdown) => /^[\s\S]*(?:[.!?…](?=\s)|[。！？]|\n)/.exec(markdown)?.[0].length ?? 0;
  const speak = (log, changed) => {
    for (const part of log.querySelectorAll("[role=log]")) {
      part.setAttribute("aria-live", "off");
      if (!part.closest("#running")) continue; // the chat is one log
      part.setAttribute("role", "presentation");
      part.removeAttribute("aria-label");
    }
    let asked, told, failed, timer, answering = false;
    let expected = false; // a message was sent, and the button that stops its answer can come after the first words
    const look = () => {
      timer = undefined;
      const busy = Boolean(stop());
      const all = window.live.messages;
      const first = all.findLastIndex(({ role, metadata }) => role === "user" && metadata?.id) + 1;
      const id = all[first - 1]?.metadata.id;
      if (id !== asked) [asked, told, failed] = [id, [], new Set()];
      const news = [];
      const turn = all.slice(first).filter(({ metadata }) => !metadata?.steps); // their steps are spoken
      for (const [number, { role, metadata, content }] of turn.entries()) {
        if (role === "user" || metadata?.parent_id) continue;
        const written = sources.unmarked(content[0]?.text ?? "").replaceAll("\u2063", "");
        const fold = metadata?.title, fails = /class="failed"/.test(fold);
        if (fold && (told[number] === undefined || (fails && !failed.has(number)))) {
          news.push(new DOMParser().parseFromString(fold, "text/html").body.textContent.trim());
        }
        if (fails) failed.add(number);
        const plain = fold || /class="(?:caption|waiting|citationlist)"/.test(written) ? "" : unescaped(written.replace(/<[^>]*>/g, " "));
        const from = told[number] ?? 0;
        const to = busy && number === turn.length - 1 ? from + sentences(plain.slice(from)) : plain.length;
        if (to > from) news.push(aloud(plain.slice(from, to)));
        told[number] = Math.max(from, to);
      }
      if (answering && news.join("")) {
        const line = document.createElement("p");
        line.textContent = news.join(" ");
        spoken.append(line);
        while (spoken.children.length > 12) spoken.firstChild.remove();
      }
      if (busy) expected = false;
      answering = busy || expected;
      if (busy) later();
      tick();
      mend();
      document.dispatchEvent(new Event("chat-mended"));
    };
    const later = () => (timer ??= setTimeout(look, stop() ? 1000 : 100));
    for (const kind of ["own-data-deleted", "chat-opening"]) {
      document.addEventListener(kind, () => {
        answering = expected = false; // the next look would speak the end of an answer that is deleted or left
        spoken.replaceChildren();
      });
    }
    for (const kind of ["message-sent", "answer-asked"]) document.addEventListener(kind, () => (answering = expected = true));
    new MutationObserver(() => {
      changed();
      later();
    }).observe(log, { childList: true, subtree: true, characterData: true });
    when("#composer .input-row", (input) => new MutationObserver(() => {
      answering ||= Boolean(stop());
      later();
    }).observe(input, { childList: true }));
    later();
  };

  // Messages can contain ids like those of the page. They are removed before a script can look for one. Mermaid draws
  // into an element that it finds again by its id.
  const unnamed = (node) => {
    for (const one of [node, ...(node.querySelectorAll?.("[id]") ?? [])]) {
      if (!one.id || !one.closest(".prose") || one.closest("svg") || /^dmermaid-\d+$/.test(one.id)) continue;
      one.removeAttribute("id");
    }
  };

  // The newest line stays in view until the reader scrolls up, and again once the next answer begins that this page asked
  // for. One that another page asked for leaves the reader, and an open edit, where they are. Shrinking content also moves
  // the view up, so a move counts as the reader's only after their input or while the content is still.
  when("#chat #running [role=log]", () => {
    const log = $("#chat");
    const added = (node) => {
      unnamed(node);
      nameBubbles(node);
    };
    added(log);
    new MutationObserver((changes) => {
      for (const { addedNodes } of changes) addedNodes.forEach(added);
    }).observe(log, { childList: true, subtree: true });
    let top = 0, following = true, held = false, settling = false;
    let touched = -Infinity, turnedUp = -Infinity, changed = -Infinity;
    // A busy page draws the next frame late, and tells of the scrolling that a change caused only then.
    const change = () => {
      changed = performance.now();
      if (settling) return;
      settling = true;
      requestAnimationFrame(() => requestAnimationFrame(() => {
        changed = performance.now();
        settling = false;
      }));
    };
    const toEnd = document.createElement("button");
    Object.assign(toEnd, { id: "to-end", type: "button", hidden: true, textContent: "↓" });
    toEnd.setAttribute("aria-label", said.to_end);
    toEnd.title = said.to_end;
    toEnd.addEventListener("click", () => {
      toTheEnd();
      box()?.focus();
    });
    when("#dock", (dock) => dock.append(toEnd));
    const below = () => log.scrollHeight - log.clientHeight - log.scrollTop;
    const offer = () => {
      const isHidden = following || below() <= EMPTY;
      if (toEnd.hidden !== isHidden) toEnd.hidden = isHidden;
    };
    const follow = (yes) => {
      following = yes;
      offer();
      log.style.overflowAnchor = yes ? "none" : ""; // the browser must not anchor to a line that is to move up
    };
    const down = () => {
      change();
      if (!following) return void offer();
      log.scrollTo({ top: log.scrollHeight, behavior: "instant" });
      top = log.scrollTop;
    };
    const toTheEnd = () => {
      turnedUp = touched = -Infinity; // what the reader did before does not explain a later move of the view
      follow(true);
      down();
    };
    const touch = () => (touched = performance.now());
    for (const kind of ["wheel", "touchmove"]) log.addEventListener(kind, touch, { passive: true });
    // The turn itself counts, because a busy page scrolls late, and text that comes before must not take the view down.
    log.addEventListener("wheel", ({ deltaY }) => {
      turnedUp = deltaY < 0 ? performance.now() : -Infinity;
      if (deltaY < 0 && log.scrollTop > 0) follow(false);
    }, { passive: true });
    log.addEventListener("pointerdown", () => (held = true));
    for (const kind of ["pointerup", "pointercancel", "pointermove"]) {
      window.addEventListener(kind, (event) => (held &&= event.buttons > 0), { passive: true });
    }
    window.addEventListener("keydown", ({ key, target }) => {
      if (key === "Tab" || !target.closest?.("input, textarea")) touch();
    }, true);
    log.addEventListener("scroll", () => {
      const now = performance.now();
      if (below() < 3) {
        if (now - turnedUp > 500) follow(true); // else it may be the page's own move, which came before the turn
      } else if (log.scrollTop < top - 1) {
        if (held || now - touched < 1500 || (!settling && now - changed > 300)) follow(false);
        else down();
      }
      top = log.scrollTop;
      offer();
      // An open edit box would move with its message while somebody types.
      if (!following && top < log.clientHeight && !$("textarea.edit-textarea", log)) window.live.earlier();
    }, { passive: true });
    // What the visitor unfolds comes below the row that they clicked. The row stays where it is, or moves up as far as is
    // needed to show what was unfolded. Following goes on if the end is still in view then. Scripts turn folds, too: their
    // clicks are not trusted.
    const lastOf = (title) => {
      const row = title.closest("[data-row]"), all = row ? [...log.querySelectorAll("[data-row], [data-step]")] : [];
      const after = all.slice(all.indexOf(row) + 1), end = after.findIndex((one) => "row" in one.dataset);
      return after.slice(0, end < 0 ? undefined : end).at(-1) ?? title.parentElement;
    };
    const reveal = (title) => {
      const view = log.getBoundingClientRect();
      const hidden = lastOf(title).getBoundingClientRect().bottom + AROUND_BUTTON - view.bottom;
      const room = title.getBoundingClientRect().top - view.top - EMPTY;
      const needed = below() < hidden + NEAR_END ? below() : hidden;
      if (hidden > 0 && room > 0) log.scrollTop += Math.min(needed, room);
    };
    const unfold = async ({ target, isTrusted, key = "Enter" }) => {
      const closed = target.closest?.(".thought-group > .title:not(.expanded), details:not([open]) > summary");
      if (!isTrusted || !closed || !["Enter", " "].includes(key)) return;
      follow(false);
      for (let frames = 0; frames < UNFOLD_FRAMES && closed.isConnected; frames++) {
        await frame();
        reveal(closed);
      }
      if (below() < 3) follow(true);
    };
    for (const kind of ["click", "keydown"]) log.addEventListener(kind, unfold, true);
    // The first long answer has no control yet, and the keyboard must be able to scroll it.
    const reach = () => {
      if (document.activeElement === log) return;
      const hasControl = () => [...log.querySelectorAll("button, a[href], [tabindex='0']")].some((one) => one.checkVisibility());
      if (log.scrollHeight > log.clientHeight + 1 && !hasControl()) log.tabIndex = 0;
      else log.removeAttribute("tabindex");
    };
    const sizes = new ResizeObserver(() => {
      down();
      reach();
    });
    sizes.observe(log);
    new MutationObserver(() => {
      for (const child of log.children) sizes.observe(child);
    }).observe(log, { childList: true });
    for (const child of log.children) sizes.observe(child);
    document.addEventListener("chat-opened", toTheEnd);
    // The question whose version was chosen stays where it is, however long what follows it is.
    for (const kind of ["message-found", "question-chosen"]) document.addEventListener(kind, () => follow(false));
    // An edit box is in view. Following goes on if the end is, too.
    document.addEventListener("edit-begun", ({ detail: area }) => {
      follow(false);
      area.scrollIntoView({ block: "nearest", behavior: "instant" });
      follow(below() < 1);
    });
    let answering = false, asked = false; // `asked`: this page asked for the answer that begins next
    for (const kind of ["message-sent", "answer-asked"]) document.addEventListener(kind, () => (asked = true));
    when("#composer .input-row", (input) => new MutationObserver(() => {
      const begins = !answering && stop();
      answering = Boolean(stop());
      if (!begins) return;
      if (asked || (following && !$("textarea.edit-textarea", log))) toTheEnd();
      else follow(false);
      asked = false;
    }).observe(input, { childList: true }));
    speak(log, change);
  });

  // Translates Gradio's English labels, names buttons without words for the pointer, too, and sets the state of what
  // unfolds.
  const label = (root) => {
    for (const element of [root, ...root.querySelectorAll("[aria-label]")]) {
      const given = element.getAttribute("aria-label"), name = said.labels?.[given] ?? given;
      if (name !== given) element.setAttribute("aria-label", name);
      const isIcon = element.matches("button") && !element.textContent.trim();
      if (name && isIcon && element.title !== name) element.title = name;
    }
  };
  when("#dock", (dock) => {
    label(dock);
    new MutationObserver(() => label(dock)).observe(dock, { childList: true, subtree: true });
  });
  when('#chat [role=log]', (log) => log.setAttribute("aria-label", said.chat));
  when("#help button", (button) => {
    button.setAttribute("aria-label", said.shortcuts);
    button.title = said.shortcuts;
  });
  when("#settings", (settings) => {
    label(settings);
    for (const input of settings.querySelectorAll("#temperature input")) {
      input.setAttribute("aria-label", input.getAttribute("aria-label").replace(/^(number input|range slider) for /, ""));
    }
    $("#extract-text .info-text")?.setAttribute("role", "status"); // the switch above it can change what it says
    const open = () => {
      const isOpen = settings.classList.contains("open");
      $(".toggle-button", settings).setAttribute("aria-expanded", isOpen);
      document.documentElement.dataset.settings = isOpen ? "open" : "closed"; // for the style of the page
    };
    new MutationObserver(open).observe(settings, { attributes: true, attributeFilter: ["class"] });
    open();
  });

  // Gradio decides by the English text whether to log in or out, so only the displayed text is translated.
  if (gradio_config.components.some(({ props }) => props.elem_id === "login")) when("#login", (button) => {
    const translate = () => {
      const texts = document.createTreeWalker(button, NodeFilter.SHOW_TEXT);
      for (let text = texts.nextNode(); text; text = texts.nextNode()) {
        const english = /^(Log in with Hugging Face)$|^Log out \((.*)\)$/.exec(text.data.trim());
        const other = english?.[1] ? said.log_in : english && said.log_out.replace("{name}", () => english[2]);
        if (other && other !== text.data.trim()) text.data = other;
      }
    };
    new MutationObserver(translate).observe(button, { childList: true, characterData: true, subtree: true });
    translate();
  });
}
