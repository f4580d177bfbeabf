// Lets the visitor choose light or dark colours. Gradio follows the colours of the device, so it is told of others.
({ light, dark }) => {
  const DARK = "(prefers-color-scheme: dark)", KEY = "colours";
  const real = window.matchMedia.bind(window), device = real(DARK), told = new EventTarget();
  let chosen = ""; // "light", "dark", or "" as the device
  try {
    chosen = localStorage.getItem(KEY) ?? "";
  } catch {
    // a browser that blocks third-party cookies gives no storage to a page in a frame
  }
  Object.defineProperty(told, "matches", { get: () => (chosen ? chosen === "dark" : device.matches) });
  Object.defineProperty(told, "media", { value: DARK });
  device.addEventListener("change", () => chosen || told.dispatchEvent(new Event("change")));
  window.matchMedia = (query) => (query === DARK ? told : real(query));
  const show = () => {
    if (chosen) document.documentElement.dataset.colours = chosen;
    else delete document.documentElement.dataset.colours;
    for (const meta of document.querySelectorAll("meta[name=theme-color]")) {
      meta.content = { light, dark }[chosen || (meta.media.includes("dark") ? "dark" : "light")];
    }
  };
  show();
  window.colours = {
    chosen: () => chosen,
    choose: (value) => {
      chosen = value;
      show();
      told.dispatchEvent(new Event("change"));
      try {
        if (value) localStorage.setItem(KEY, value);
        else localStorage.removeItem(KEY);
      } catch {
        // it lasts as long as the page
      }
    },
  };
}
