// Mends Gradio's toasts: no button around another one, translated words, and nothing that the page says already or that is
// over.
import { $, language, said, when } from "./shared.js";

const LOST = "Connection to the server was lost. Attempting reconnection...";
const UNITS = { B: "byte", K: "kilobyte", M: "megabyte", G: "gigabyte" };
const LARGE = /^File\(s\) exceed the maximum allowed size of ([\d.]+) (\S+): (.+)$/;
const STATUS = /^HTTP \d+: (.+)$/;
const plain = (text) => text.replace(/\s+/g, " ").trim();
// Whether the notes on the attached files say the same.
const isRepeated = (text) => {
  const notes = [...document.querySelectorAll("#attached li.refused span")].map((note) => plain(note.textContent));
  return notes.length > 0 && !plain(notes.reduce((rest, note) => rest.replace(note, ""), plain(text)));
};
const inOurWords = (text) => {
  const [, most, unit, names] = LARGE.exec(plain(text)) ?? [];
  if (most) {
    const size = parseFloat(most).toLocaleString(language, { style: "unit", unit: UNITS[unit[0].toUpperCase()] });
    return said.too_large.replace("{most}", size).replace("{names}", () => names.replaceAll('"', ""));
  }
  if (plain(text) === LOST) return said.connection_lost;
  const [, refusal] = STATUS.exec(plain(text)) ?? []; // of an upload
  if (refusal) return refusal;
  return isRepeated(text) ? said.not_sent : "";
};
const mend = (toasts) => {
  // A head need not be a button, because the text that it folds is short.
  for (const head of toasts.querySelectorAll(".toast-header[role]")) {
    head.removeAttribute("role");
    head.removeAttribute("tabindex");
    $(".toast-close", head)?.setAttribute("aria-label", said.close);
  }
  for (const text of toasts.querySelectorAll("[data-testid=toast-text]:not([hidden])")) {
    const better = inOurWords(text.textContent);
    if (!better) continue;
    const short = Object.assign(document.createElement("div"), { className: text.className, textContent: better });
    text.hidden = true;
    text.after(short);
  }
  // The same message again is shown once. The newest stays longest.
  for (const list of toasts.querySelectorAll(".toast-messages")) {
    const items = [...list.querySelectorAll(".toast-message-item")];
    const texts = items.map((item) => $(".toast-message-text:not([hidden])", item)?.textContent);
    for (const [n, item] of items.entries()) {
      item.hidden = texts.includes(texts[n], n + 1);
      if (item.nextElementSibling) item.nextElementSibling.hidden = item.hidden;
    }
  }
};
// Closes those whose cause is gone: all of them, or the ones that only point to the notes on the attached files.
const close = (isOver = () => true) => {
  for (const toast of document.querySelectorAll(".toast-wrap .toast-body")) {
    if ([...toast.querySelectorAll(".toast-message-text:not([hidden])")].every(isOver)) $(".toast-close", toast)?.click();
  }
};
for (const kind of ["chat-opening", "message-stored"]) document.addEventListener(kind, () => close());
document.addEventListener("gradio-call", ({ detail }) => detail === "pick" && close()); // another model
when("#attached", (notes) => new MutationObserver(() => {
  if (!$("li.refused", notes)) close(({ textContent }) => plain(textContent) === said.not_sent);
}).observe(notes, { childList: true, subtree: true }));
when(".toast-wrap", (toasts) => new MutationObserver(() => mend(toasts)).observe(toasts, { childList: true, subtree: true }));
