// The page of an empty chat: its composer stands in the middle, and the examples below it. Says for the style whether the
// chat is empty.
({ $, when }) => {
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
  document.addEventListener("chat-view", ({ detail: { turns, live, missing } }) => {
    if (turns?.length || live) turn("begun");
    else if (turns || missing) turn("empty");
  });

  // A hint lies above the composer. The greeting makes room for it, and so does a chat whose last buttons it would cover.
  when("#hint", (note) => new ResizeObserver(() => {
    const { style } = $("#page"), room = note.offsetHeight && `${note.offsetHeight + 8}px`;
    if (room) style.setProperty("--hint-room", room);
    else style.removeProperty("--hint-room");
  }).observe(note));
}
