// What the page does in the browser besides Gradio: copy an answer's text alone, stop with Escape.
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
}
