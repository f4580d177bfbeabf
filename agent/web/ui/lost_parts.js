// Loads the page again if a part of it was lost on the way, for example without a network: at most three times in a minute.
// Once there is a composer, Gradio goes on without the part.
(() => {
  const MOST = 3, WITHIN_MS = 60_000;
  const hasComposer = () => Boolean(document.querySelector("#composer textarea"));
  let again = false;
  const reload = (isNeeded) => {
    if (again) return;
    again = true;
    try {
      const times = JSON.parse(sessionStorage.getItem("lost-parts") ?? "[]").filter((time) => Date.now() - time < WITHIN_MS);
      if (times.length >= MOST) return;
      sessionStorage.setItem("lost-parts", JSON.stringify([...times, Date.now()]));
    } catch {
      return; // a browser that gives no storage to a page in a frame cannot count
    }
    const load = () => isNeeded() && location.reload();
    if (document.readyState === "complete") load();
    else addEventListener("load", () => setTimeout(load));
  };
  addEventListener("vite:preloadError", (event) => (hasComposer() ? event.preventDefault() : reload(() => !hasComposer())));
  addEventListener("error", ({ target }) => target.matches?.("[data-page]") && reload(() => true), true);
})();
