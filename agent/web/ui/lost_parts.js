// Loads the page again if a part of it was lost on the way, because Gradio would leave it empty. It does so at most three
// times in a minute, and never once there is a composer, in which something may be typed.
(() => {
  const MOST = 3, WITHIN_MS = 60_000;
  let again = false;
  const reload = () => {
    if (!document.querySelector("#composer textarea")) location.reload();
  };
  addEventListener("vite:preloadError", () => {
    if (again) return;
    again = true;
    try {
      const times = JSON.parse(sessionStorage.getItem("lost-parts") ?? "[]").filter((time) => Date.now() - time < WITHIN_MS);
      if (times.length >= MOST) return;
      sessionStorage.setItem("lost-parts", JSON.stringify([...times, Date.now()]));
    } catch {
      return; // a browser that gives no storage to a page in a frame cannot count
    }
    if (document.readyState === "complete") reload();
    else addEventListener("load", () => setTimeout(reload));
  });
})();
