// Gives Gradio the language of the page. The server chooses it from all languages of the browser, and Gradio would take
// the first one, of which it may have its own words when the page has none.
(language) => {
  if (navigator.language.split("-")[0] === language) return;
  Object.defineProperty(navigator, "language", { get: () => language });
}
