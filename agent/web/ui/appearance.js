// The language and the colours, in the settings. The browser keeps both. The server makes the page in the language of the
// cookie, so another language needs another page.
({ said, language, languages, $, when, frame, root, make, kept: tab }) => {
  const COOKIE = "switchboard_language", YEAR = 365 * 24 * 3600, OPENING_FRAMES = 60;
  // A page in a frame of another site has cookies of its own there.
  const how = location.protocol === "https:" ? "SameSite=None; Secure; Partitioned" : "SameSite=Lax";
  const keep = (chosen) => {
    document.cookie = `${COOKIE}=${chosen}; Path=${root || "/"}; Max-Age=${chosen ? YEAR : 0}; ${how}`;
  };
  const kept = () => new RegExp(`(?:^|; )${COOKIE}=(\\w+)`).exec(document.cookie)?.[1] ?? "";
  const nameOf = (code) => {
    const name = new Intl.DisplayNames([code], { type: "language" }).of(code);
    return name[0].toLocaleUpperCase(code) + name.slice(1);
  };
  const menu = (name, values, chosen, choose) => {
    const options = values.map(([value, text, lang]) => make("option", { value, ...(lang && { lang }) }, text));
    const select = make("select", { id: `choose-${name}` }, ...options);
    select.value = chosen;
    select.addEventListener("change", () => choose(select.value));
    return make("div", { class: "choice" }, make("label", { for: select.id }, said[name]), select);
  };
  // The page was loaded again in the middle of the settings. What they hold can take the focus some frames after they open.
  const openAgain = async () => {
    tab.set("language-chosen", undefined);
    if (!$("#settings.open")) $("#settings .toggle-button").click();
    const select = $("#choose-language");
    for (let frames = 0; document.activeElement !== select && frames < OPENING_FRAMES; frames++) {
      select.focus();
      await frame();
    }
  };
  when("#own-data section", (section) => {
    const usual = ["", said.as_in_browser];
    section.before(make("section", { id: "appearance", "aria-label": said.appearance },
      menu("language", [usual, ...languages.map((code) => [code, nameOf(code), code])], kept(), (chosen) => {
        keep(chosen);
        kept(); // Chromium can set a cookie a moment later. Reading waits for that, and a reload does not.
        tab.set("language-chosen", true);
        location.reload();
      }),
      menu("colours", [usual, ["light", said.light], ["dark", said.dark]], window.colours.chosen(), window.colours.choose)));
    if (tab.get("language-chosen")) openAgain();
  });
}
