// What the page does in the browser besides Gradio: copy an answer's text alone, stop with Escape, keep a draft.
() => {
  const chat = () => document.getElementById("chat");

  // Gradio's copy takes everything in the group, reasoning, tool calls and captions too. People want the answer.
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.('#chat button[title="Copy message"]');
    const row = button?.closest(".message-buttons")?.previousElementSibling;
    if (!row?.classList.contains("bot-row")) return;
    const texts = [...row.querySelectorAll('[data-testid="bot"]')]
      .filter((bubble) => !bubble.querySelector(".thought-group, .caption, .waiting, .problem"))
      .map((bubble) => bubble.getAttribute("aria-label").replace(/^bot's message: /, ""));
    if (!texts.length) return;
    event.stopPropagation();
    event.preventDefault();
    navigator.clipboard.writeText(texts.join("\n\n"));
    button.classList.add("copied");
    setTimeout(() => button.classList.remove("copied"), 1200);
  }, true);

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.isComposing) return;
    document.querySelector('#composer button.stop-button')?.click();
  });

  // Gradio loads the page anew when a server that was gone comes back: what was being typed must outlive that.
  const box = () => document.querySelector("#composer textarea");
  addEventListener("pagehide", () => sessionStorage.setItem("draft", box()?.value ?? ""));
  const draft = sessionStorage.getItem("draft");
  const restore = () => {
    if (!box()) return void setTimeout(restore, 50);
    if (box().value) return;
    box().value = draft;
    box().dispatchEvent(new Event("input", { bubbles: true }));
  };
  if (draft) restore();
}
