// The page of an empty chat: its composer stands in the middle, and the examples below it. Says for the style whether the
// chat is empty. Gradio has the examples above the composer, so these are copies that click them: the order of the page is
// also the order in which the keyboard and a screen reader come to its parts.
({ said, $, when, make }) => {
  const { dataset } = document.documentElement;
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const place = () => $("#dock")?.getBoundingClientRect().top;
  const turn = (state) => {
    if (dataset.chat === state) return;
    const before = dataset.chat === "empty" && !still.matches ? place() : undefined;
    dataset.chat = state;
    const by = before - place();
    if (by) $("#dock").animate([{ transform: `translateY(${by}px)` }, { transform: "none" }], { duration: 220, easing: "ease-out" });
  };
  if (/\/c\/[\w-]+$/.test(location.pathname)) turn("begun"); // most likely, and then nothing moves
  document.addEventListener("chat-none", () => dataset.chat ?? turn("empty"));
  document.addEventListener("chat-view", ({ detail: { messages, live, missing } }) => {
    if (messages?.length || live) turn("begun");
    else if (messages || missing) turn("empty");
  });

  // A hint lies above the composer. The greeting makes room for it, and so does a chat whose last buttons it would cover.
  when("#hint", (note) => new ResizeObserver(() => {
    const { style } = $("#chat"), room = note.offsetHeight && `${note.offsetHeight + 8}px`;
    const rooms = { "--hint-room": room, "--greeting-room": dataset.chat === "empty" && room };
    for (const [name, value] of Object.entries(rooms)) {
      if (value) style.setProperty(name, value);
      else style.removeProperty(name);
    }
  }).observe(note));

  const copies = make("div", { id: "examples", role: "group", "aria-label": said.examples });
  let drawn = "";
  const copy = () => {
    const all = [...document.querySelectorAll("#chat > .block .example")];
    const now = all.map(({ outerHTML }) => outerHTML).join();
    if (now === drawn) return;
    drawn = now;
    copies.replaceChildren(...all.map((one) => {
      const mine = one.cloneNode(true);
      // Its name is what it says. Gradio has another one, in English.
      mine.removeAttribute("aria-label");
      for (const icon of mine.querySelectorAll("img")) icon.alt = "";
      mine.addEventListener("click", () => one.click());
      return mine;
    }));
  };
  when("#about", (about) => about.after(copies));
  when("#chat > .block", (chat) => {
    new MutationObserver(() => ($(".placeholder-content", chat) || drawn) && copy()).observe(chat, { childList: true, subtree: true, characterData: true });
    copy();
  });
}
