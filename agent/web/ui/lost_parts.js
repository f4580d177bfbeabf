// Goes on if a part of the page was lost on the way, for example without a network.
//
// Without a composer, the page is loaded again, because Gradio would leave it empty: at most three times in a minute. Once
// there is a composer, something may be typed in it. Then Gradio is told to do without the part, which draws formulas or
// the colours of code. Otherwise it would not draw the text around them, and could show an older text in its place. The
// next visit gets the part. Styles are loaded again until they come.
(() => {
  const MOST = 3, WITHIN_MS = 60_000, RETRY_MS = 2000;
  const hasComposer = () => Boolean(document.querySelector("#composer textarea"));
  let again = false;
  const reload = () => hasComposer() || location.reload();
  const style = (href) => setTimeout(() => {
    const link = Object.assign(document.createElement("link"), { rel: "stylesheet", crossOrigin: "", href });
    link.addEventListener("error", () => (link.remove(), style(href)));
    document.head.append(link);
  }, RETRY_MS);
  addEventListener("vite:preloadError", (event) => {
    if (hasComposer()) {
      event.preventDefault();
      const [, lost] = /CSS for (\S+)$/.exec(event.payload?.message) ?? [];
      return lost && style(lost);
    }
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
