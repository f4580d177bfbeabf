// Prepares the printed chat: says if older messages are not on the page, and which links already show their address.
({ said, $, when }) => {
  const note = document.createElement("p");
  note.id = "print-note";
  when("#chat", (chat) => chat.before(note));
  const bare = (text) => text.trim().replace(/^(?:https?:\/\/)?(?:www\.)?|\/$/g, "");
  const prepare = () => {
    note.textContent = $(":root:not([data-whole]) #earlier") ? said.print_earlier : "";
    for (const link of document.querySelectorAll('#chat .prose a[href^="http"]')) {
      link.toggleAttribute("data-bare", bare(link.textContent) === bare(link.getAttribute("href")));
    }
  };
  const print = matchMedia("print");
  print.addEventListener("change", () => print.matches && prepare());
  addEventListener("beforeprint", prepare);
}
