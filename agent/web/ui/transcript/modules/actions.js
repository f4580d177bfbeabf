// What a click on a button of the transcript does. What only the server can do becomes an event.
import { save, textOfBlock } from "./blocks.js";

/**
 * @param {HTMLElement} root
 * @param {import("./draw.js").Drawing} drawing
 * @param {{fire: (name: string, detail: object) => void, textOf?: (turn: string, part?: string) => Promise<string>,
 *   say: (text: string) => void, edit: (turn: string) => void}} options
 */
export function listen(root, drawing, { fire, textOf, say, edit }) {
  const { labels } = drawing;
  /** @param {HTMLElement} button @param {string | Promise<string>} text a promise, as the browser asks for a click */
  const copy = async (button, text) => {
    try {
      if (typeof text === "string") await navigator.clipboard.writeText(text);
      else {
        const blob = text.then((said) => new Blob([said], { type: "text/plain" }));
        await navigator.clipboard.write([new ClipboardItem({ "text/plain": blob })]);
      }
    } catch {
      return say(labels.copyFailed);
    }
    say(labels.copied);
    button.dataset.done = "1";
    setTimeout(() => delete button.dataset.done, 1500);
  };
  root.addEventListener("click", ({ target }) => {
    const element = /** @type {Element} */ (target);
    const folded = element.closest("summary")?.closest(".bubble");
    if (folded instanceof HTMLElement && element.closest("details")?.parentElement === folded) folded.dataset.touched = "1";
    const button = element.closest("[data-action]");
    if (!(button instanceof HTMLButtonElement)) return;
    const id = /** @type {HTMLElement} */ (button.closest("[data-turn]")).dataset.turn ?? "";
    const view = drawing.views.get(id), name = button.dataset.action ?? "";
    if (!view) return;
    const text = textOfBlock(button);
    if (text !== undefined) return name === "save" ? save(button.value, text) : void copy(button, text);
    if (name === "steps") {
      button.setAttribute("aria-expanded", String(button.getAttribute("aria-expanded") !== "true"));
      return drawing.arrange(view);
    }
    if (name === "edit") return edit(id);
    if (name === "copy") void copy(button, view.turn.text ?? textOf?.(id) ?? "");
    if (name === "copy-message") void copy(button, textOf?.(id, "message") ?? "");
    const value = name === "version" ? { message: button.value } : name === "choose" ? { value: view.turn.buttons?.[Number(button.value)]?.value } : {};
    fire(name, { turn: id, ...value });
  });
}
