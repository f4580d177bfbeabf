// What the parts of the page's script share. `words` are those of words.toml for the browser, by language.
(words) => {
  const language = (navigator.language || "en").slice(0, 2).toLowerCase();
  const $ = (selector, root = document) => root.querySelector(selector);
  const when = (selector, then) => {
    const found = $(selector);
    if (found) return then(found);
    setTimeout(() => when(selector, then), 50);
  };
  return { said: words[language] ?? words.en, $, box: () => $("#composer textarea"), when };
}
