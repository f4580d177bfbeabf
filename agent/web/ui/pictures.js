// Makes the pictures of the chat buttons that open the viewer. viewer.js is loaded with the first picture that is opened.
({ said, hint, load }) => {
  const PICTURES = "#chat .prose img:not(a img, button img)";
  const open = async (picture) => {
    const show = await load("viewer").catch(() => hint(said.chats_failed));
    if (!show) return;
    const pictures = [...document.querySelectorAll(PICTURES)].filter((one) => one.naturalWidth);
    if (pictures.includes(picture) && !document.querySelector("dialog[open]")) show.pictures(pictures, picture);
  };
  const act = (event) => {
    const isKey = event.type === "keydown";
    if (!event.target.matches?.(`:is(${PICTURES})[role]`) || (isKey && ![" ", "Enter"].includes(event.key))) return;
    event.preventDefault();
    event.stopPropagation();
    open(event.target);
  };
  addEventListener("click", act, true);
  addEventListener("keydown", act, true);
  const mend = ({ target: picture }) => {
    picture.setAttribute("role", "button");
    picture.tabIndex = 0;
    picture.title = said.viewer_open;
  };
  document.addEventListener("chat-mended", () => {
    for (const picture of document.querySelectorAll(`:is(${PICTURES}):not([role])`)) {
      if (picture.naturalWidth) mend({ target: picture });
      else picture.addEventListener("load", mend, { once: true }); // and not one that cannot be shown
    }
  });
}
