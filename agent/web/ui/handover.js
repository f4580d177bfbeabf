// Gives a turn that has ended to the first chatbot, which shows it like a stored one.
({ $, frame, division }) => {
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
  // Gradio draws a text some time after its message. No text stays empty.
  const drawnFully = async (texts, is) => {
    for (let frames = 0; frames < 30; frames++) {
      await frame();
      if (is() && [...texts].every((text) => text.firstChild)) return;
    }
  };
  const pause = () => new Promise((done) => setTimeout(done)); // other things that wait come first
  const reveal = () => {
    $("#chat").removeAttribute("data-ending");
    delete $("#chat").dataset.running;
  };
  // Has the chatbot draw the turn before it is shown there, so that nothing flickers: formulas, opened folds and long
  // texts are drawn late. It gets a long turn in stages, one for each frame, so that the page never stands still. `show`
  // has it show messages of the turn, and `goesOn` says whether the page still shows this conversation.
  const handOver = async (messages, show, goesOn) => {
    const first = $("#chat > .block"), texts = first.getElementsByClassName("md"), seams = first.getElementsByClassName("seam");
    const wanted = turned(folds("#running")), count = texts.length;
    const stages = document.hidden ? [] : division.stages(messages);
    const late = stages.length || wanted.some((open) => open !== undefined) || /\$\$|\\[[(]|\u2063/.test(JSON.stringify(messages));
    if (!late) return;
    first.style.setProperty("--shown", `${first.offsetHeight}px`);
    $("#chat").toggleAttribute("data-ending", true);
    for (const stage of stages) {
      show(stage);
      await pause();
      await frame();
      await pause();
      if (!goesOn()) return;
    }
    show(messages);
    await pause();
    await drawnFully(texts, () => texts.length > count && !seams.length);
    if (goesOn()) await turn(folds("> .block").slice(-wanted.length || Infinity), wanted);
    if (wanted.some(Boolean)) await drawnFully(texts, () => true);
    await frame(); // what was drawn last has a frame of its own
    if (!goesOn()) return;
    reveal();
    await frame();
    await pause();
  };
  // Keeps the folds of the answer as the visitor turned them while it is drawn.
  const keepFolds = () => {
    const wanted = turned(folds("#running"));
    requestAnimationFrame(() => turn(folds("#running"), wanted));
  };
  return { handOver, keepFolds, reveal };
}
