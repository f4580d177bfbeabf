// What a click on a button of the transcript does. What only the server can do becomes an event.
import { save, textOfBlock } from "./blocks.js";
import { make } from "./elements.js";

/** Copy a text. That of a promise is asked for at once, because a click does not count for long. @param {string | Promise<string>} text */
async function copyText(text) {
  const { clipboard } = navigator;
  if (typeof text !== "string" && clipboard && "ClipboardItem" in globalThis) {
    const blob = text.then((said) => new Blob([said], { type: "text/plain" }));
    return clipboard.write([new ClipboardItem({ "text/plain": blob })]);
  }
  const said = await text;
  if (clipboard) return clipboard.writeText(said);
  const area = make("textarea", { value: said }), active = document.activeElement;
  document.body.append(area); // a page without TLS has no clipboard
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  if (active instanceof HTMLElement) active.focus({ preventScroll: true });
  if (!isCopied) throw new Error();
}

/**
 * @param {HTMLElement} root
 * @param {import("./draw.js").Drawing} drawing
 * @param {{fire: (name: string, detail: object) => void, textOf?: (turn: string, part: string) => Promise<string>,
 *   say: (text: string) => void, fail: (text: string) => void, edit: (turn: string) => void}} options
 */
export function listen(root, drawing, { fire, textOf, say, fail, edit }) {
  const { labels } = drawing;
  /** @type {{id: string, part: string, number: number} | undefined} The version that was chosen, until it is shown. */
  let chosen;
  /** @param {HTMLElement} button @param {string | Promise<string>} text @param {(text: string, isFine: boolean) => void} tell */
  const copy = async (button, text, tell = (said, isFine) => (isFine ? say : fail)(said)) => {
    try {
      await copyText(text);
    } catch {
      return tell(await Promise.resolve(text).then(() => labels.copyFailed, ({ message }) => message), false);
    }
    tell(labels.copied, true);
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
    const pre = button.closest("pre");
    if (name === "preview" && pre) return void drawing.frames.open(pre, { fire, fail, copy });
    if (name === "run" && pre) return void drawing.frames.run(pre, { fire, fail });
    const text = textOfBlock(button);
    if (text !== undefined) return name === "save" ? save(button.value, new Blob([text], { type: "text/plain" })) : void copy(button, text);
    if (name === "steps") return drawing.turnRow(button, view);
    if (name === "edit" && textOf) return edit(id);
    const part = view.asked.contains(button) ? "message" : "answer";
    if (name === "copy") void copy(button, (part === "answer" ? view.turn.text : undefined) ?? textOf?.(id, part) ?? "");
    let more = {};
    if (name === "choose") more = { value: view.turn.buttons?.[Number(button.value)]?.value };
    if (name === "version") {
      more = { message: button.value, part };
      chosen = { id: button.value, part, number: [...(button.parentElement?.querySelectorAll("button") ?? [])].indexOf(button) };
    }
    fire(name, { turn: id, ...more });
  });
  return {
    /** Give the focus back to the arrow that has shown another version, or at an end to the other one. */
    refocus() {
      const view = drawing.views.get(chosen?.id ?? "");
      if (!chosen || !view) return;
      const arrows = [...(chosen.part === "message" ? view.asked : view.foot).querySelectorAll(".versions > button")];
      const arrow = /** @type {HTMLButtonElement | undefined} */ (arrows[chosen.number]?.matches(":disabled") ? arrows[1 - chosen.number] : arrows[chosen.number]);
      if (document.activeElement === document.body) arrow?.focus({ preventScroll: true });
      if (arrow) chosen = undefined;
    },
  };
}
