// Gives a turn that has ended to the first chatbot, which shows it like a stored one.
({ $, frame, division }) => {
  // A message that moves to another chatbot is drawn anew. Folds that the visitor opened or closed are turned again. Each
  // has a name that stays when a row comes before the steps of a timeline, or a fold inside another one is drawn.
  const isInner = (title) => Boolean(title.closest(".children"));
  const titles = (chatbots) => [...document.querySelectorAll(`#chat ${chatbots} .thought-group > .title`)];
  const named = (titles) => {
    const folds = new Map();
    let steps = 0, inner = 0;
    for (const title of titles) {
      if (isInner(title)) folds.set(`${steps}.${++inner}`, title);
      else if ($(".steps", title)) folds.set(`row ${steps + 1}`, title);
      else folds.set(`${++steps}`, title);
      if (!isInner(title)) inner = 0;
    }
    return folds;
  };
  const ofTurn = (count) => { // the first chatbot has all turns, and the last one is this turn
    const all = titles("> .block"), outer = all.filter((title) => !isInner(title));
    return count ? named(all.slice(all.indexOf(outer.at(-count)))) : new Map();
  };
  const running = () => named(titles("#running"));
  const isOpen = (title) => title.classList.contains("expanded");
  const isUsuallyOpen = (title) => isInner(title) || Boolean($(".loading-spinner", title)); // a result is open in its call
  const turned = (folds) =>
    new Map([...folds].map(([name, title]) => [name, isOpen(title) === isUsuallyOpen(title) ? undefined : isOpen(title)]));
  const turnOnce = async (folds, wanted) => {
    const wrong = [...folds].filter(([name, title]) => (wanted.get(name) ?? isOpen(title)) !== isOpen(title)).map(([, title]) => title);
    for (const title of wrong) title.click();
    for (let frames = 0; wrong.length && frames < 3; frames++) { // Gradio slides them open, from the next frame on
      for (const title of wrong) {
        for (const sliding of title.parentElement.getAnimations({ subtree: true })) sliding.finish();
      }
      await frame();
    }
    return wrong.length > 0;
  };
  // A fold inside another one is there once that one is open.
  const turn = async (read, wanted) => {
    if (await turnOnce(read(), wanted)) await turnOnce(read(), wanted);
  };
  // Gradio draws a text some time after its message. No text stays empty.
  const drawnFully = async (texts, is) => {
    for (let frames = 0; frames < 30; frames++) {
      await frame();
      if (is() && [...texts].every((text) => text.firstChild)) return;
    }
  };
  // Everything else that waits comes first. Safari knows no such priority.
  const pause = () => window.scheduler?.postTask?.(() => {}, { priority: "background" }) ?? new Promise((done) => setTimeout(done));
  const drawing = async () => {
    await pause();
    await frame();
    await pause();
  };
  const reveal = () => {
    $("#chat").removeAttribute("data-ending");
    delete $("#chat").dataset.running;
  };
  // Has the chatbot draw the turn before it is shown there, so that nothing flickers: formulas, opened folds and long
  // texts are drawn late. It gets a long turn in stages, one for each frame, and the other chatbots lose it in stages, so
  // that the page never stands still. `show` has the first chatbot show messages of the turn. `drop` has the others show a
  // few less, and says whether any is left. `goesOn` says whether the page still shows this conversation.
  const handOver = async (messages, show, drop, goesOn) => {
    const first = $("#chat > .block"), texts = first.getElementsByClassName("md");
    const outer = titles("#running").filter((title) => !isInner(title)).length;
    const wanted = turned(running()), isTurned = [...wanted.values()].some((open) => open !== undefined), count = texts.length;
    const stages = document.hidden ? [] : division.stages(messages);
    const late = stages.length || isTurned || /\$\$|\\[[(]|\u2063/.test(JSON.stringify(messages));
    if (!late) return;
    first.style.setProperty("--shown", `${first.offsetHeight}px`);
    $("#chat").toggleAttribute("data-ending", true);
    if (stages.length) await drawing();
    for (const stage of stages) {
      if (!goesOn()) return;
      show(stage);
      await drawing();
    }
    if (!goesOn()) return;
    show(division.settled(messages));
    await pause();
    await drawnFully(texts, () => texts.length > count);
    if (goesOn()) await turn(() => ofTurn(outer), wanted);
    if (isTurned) await drawnFully(texts, () => true);
    await frame(); // what was drawn last has a frame of its own
    if (!goesOn()) return;
    $("#chat").toggleAttribute("data-leaving", true);
    reveal();
    await frame();
    await pause();
    for (let more = true; more && goesOn(); await drawing()) more = drop();
    $("#chat").removeAttribute("data-leaving");
  };
  // Keeps the folds of the answer as the visitor turned them while it is drawn.
  const keepFolds = () => {
    const wanted = turned(running());
    requestAnimationFrame(() => turn(running, wanted));
  };
  return { handOver, keepFolds, reveal };
}
