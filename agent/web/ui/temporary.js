// A temporary chat: its mark, and the requests that keep it on the server while a page shows it. chats.js begins it.
({ said, language, $, when, root }) => {
  const ASK_MS = 15000;
  let id = "", guest = "", timer, asking;

  const mark = document.createElement("p");
  mark.id = "temporary";
  mark.setAttribute("role", "status");
  when("#chat", (chat) => chat.before(mark));

  // Says to the server that the chat is still shown. Without a network it is asked again.
  const ask = async () => {
    clearTimeout(timer);
    timer = setTimeout(ask, ASK_MS);
    if (asking) return;
    asking = true;
    const asked = id, address = new URL(`${root}/temporary/${asked}`, location);
    if (guest) address.searchParams.set("guest", guest);
    try {
      const { status } = await fetch(address, { method: "POST", headers: { "accept-language": language } });
      if (status === 404 && asked === id) document.dispatchEvent(new Event("temporary-over"));
    } catch {
      // the server may come back
    }
    asking = false;
  };
  const begun = () => id.includes("-"); // its address names it once the server has begun it
  document.addEventListener("chat-view", ({ detail }) => (guest = detail.guest || guest));
  document.addEventListener("chat-shown", ({ detail }) => {
    if (detail.id === id) return;
    id = detail.isTemporary ? detail.id : "";
    document.documentElement.toggleAttribute("data-temporary", Boolean(id));
    const text = id ? said.temporary_mark : "";
    if (mark.textContent !== text) mark.textContent = text;
    clearTimeout(timer);
    if (begun()) ask();
  });
  document.addEventListener("visibilitychange", () => document.hidden || !begun() || ask());
}
