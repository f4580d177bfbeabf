// Makes the pictures of the chat buttons that open the viewer. viewer.js is loaded with the first picture that is opened.
({ said, when, hint, load }) => {
  const PICTURES = "#chat .part img:not(a img, button img)";
  const open = async (picture) => {
    const show = await load("viewer").catch(() => hint(said.chats_failed));
    if (!show) return;
    const pictures = [...document.querySelectorAll(`:is(${PICTURES})[role]`)].filter((one) => one.checkVisibility());
    if (pictures.includes(picture) && !document.querySelector("dialog[open]")) show.pictures(pictures, picture);
  };
  const act = (event) => {
    if (!event.target.matches(`:is(${PICTURES})[role]`) || (event.key && ![" ", "Enter"].includes(event.key))) return;
    event.preventDefault();
    open(event.target);
  };
  when("#chat", (chat) => {
    chat.addEventListener("click", act);
    chat.addEventListener("keydown", act);
    chat.addEventListener("load", ({ target: picture }) => { // not for one that cannot be shown
      if (!picture.matches(PICTURES)) return;
      picture.setAttribute("role", "button");
      picture.tabIndex = 0;
      picture.title = said.viewer_open;
    }, true);
  });
}
