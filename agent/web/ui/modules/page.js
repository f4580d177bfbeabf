// The page: the modules that each visit needs, keyboard shortcuts, and what Gradio's widgets say otherwise than this page wants.
// A module that comes first hears a key or a click first.
import { composes, soft } from "../transcript/modules/elements.js";
import "./prompts.js";
import "./network.js";
import "./composer.js";
import "./chats.js";
import { TOASTS, mendToasts } from "./gradio.js";
import { live } from "./live.js";
import "./options.js";
import "./attachments.js";
import { $, box, editor, hint, kept, load, panel, said, shown, when } from "./shared.js";

// Keys. The window handles them before Gradio.
const shortcuts = document.createElement("dialog");
shortcuts.id = "shortcuts";
shortcuts.setAttribute("aria-labelledby", "shortcuts-title");
const rows = [["send", soft.matches ? "ctrl_enter" : "enter"], ["newline", soft.matches ? "enter" : "shift_enter"], ["stop", "escape"], ["edit", "up"], ["prompts", "slash"],
  ["new", "new"], ["help", "question", "help"]];
shortcuts.innerHTML = `<h2 id="shortcuts-title">${said.shortcuts}</h2><dl>${rows.map(([does, ...keys]) =>
  `<dt>${keys.map((key) => `<kbd>${said["key_" + key]}</kbd>`).join(" ")}</dt><dd>${said["does_" + does]}</dd>`).join("")}</dl>` +
  `<form method="dialog"><button>${said.close}</button></form>`;
document.body.append(shortcuts);
const help = () => (shortcuts.open ? shortcuts.close() : shortcuts.showModal());
shortcuts.addEventListener("click", (event) => event.target === shortcuts && shortcuts.close());
document.addEventListener("click", (event) => event.target.closest?.("#help button") && help());

// After a click on something that is then disabled or removed, nothing has the focus, and after a choice in the
// composer a button has it. What is typed next is meant for the box.
const toBox = (event) => {
  const { key, altKey, ctrlKey, metaKey } = event;
  const types = (key.length === 1 && !" ?".includes(key) && !altKey && !ctrlKey && !metaKey) || composes(event);
  const pastes = key.toLowerCase() === "v" && (ctrlKey || metaKey);
  const active = document.activeElement, idle = active === document.body || active?.matches("#composer button, #chat [data-action=version], #chat .lane");
  if (idle && (types || pastes) && !$("dialog[open]")) box()?.focus();
};
window.addEventListener("keydown", (event) => {
  toBox(event);
  if (composes(event)) return;
  const typing = event.target.closest?.("input, textarea, select");
  if (event.target.closest?.("#chat form")) return;
  if ($("dialog[open]:not(#shortcuts)")) return;
  else if ((event.key === "/" && (event.ctrlKey || event.metaKey)) || (event.key === "?" && !typing)) {
    event.preventDefault();
    help();
  } else if (shortcuts.open) return;
  else if (event.key === "Escape") {
    if ($("[popover=auto]:popover-open") || event.target.closest?.(".artifact")) return; // they close themselves
    if (editor.isRunning()) $("#composer .stop-button").click();
    else if (panel.isOpen() && panel.element.contains(event.target)) {
      panel.open(false);
      panel.toggle.focus();
    }
  } else if (event.key === "ArrowUp" && event.target === box() && !box().value && !editor.isRunning()) {
    const last = live.lastMessage();
    if (!last) return;
    event.preventDefault();
    shown.transcript.edit(last);
  }
}, true);

if (kept.get("compare")) load("compare").catch(() => hint(said.chats_failed));

// Counts the seconds of what takes long.
const count = (panel) => {
  let timer;
  const tick = () => {
    const doing = panel.querySelectorAll(".doing");
    for (const one of doing) {
      one.dataset.since ??= Date.now();
      const seconds = Math.floor((Date.now() - one.dataset.since) / 1000);
      if (seconds > 1) one.dataset.seconds = `${seconds} s`;
    }
    timer = doing.length ? setTimeout(tick, 500) : undefined;
  };
  new MutationObserver(() => (timer ??= setTimeout(tick))).observe(panel, { childList: true, subtree: true });
};
when("#checking", count);
when("#sending", count);

when("#help button", (button) => {
  button.setAttribute("aria-label", said.shortcuts);
  button.title = said.shortcuts;
});
const more = () => load("settings").catch(() => hint(said.chats_failed));
document.addEventListener("settings:toggled", () => {
  document.documentElement.dataset.settings = panel.isOpen() ? "open" : "closed"; // for the style of the page
  if (panel.isOpen()) more();
});
if (kept.get("language-chosen")) more();

// Gradio decides by the English text whether to log in or out, so only the displayed text is translated.
if (gradio_config.components.some(({ props }) => props.elem_id === "login")) when("#login", (button) => {
  const translate = () => {
    const texts = document.createTreeWalker(button, NodeFilter.SHOW_TEXT);
    for (let text = texts.nextNode(); text; text = texts.nextNode()) {
      const english = /^(Log in with Hugging Face)$|^Log out \((.*)\)$/.exec(text.nodeValue.trim());
      const other = english?.[1] ? said.log_in : english && said.log_out.replace("{name}", () => english[2]);
      if (other && other !== text.nodeValue.trim()) text.nodeValue = other;
    }
  };
  new MutationObserver(translate).observe(button, { childList: true, characterData: true, subtree: true });
  translate();
});

document.addEventListener("gradio-failed", () => hint(said.chats_failed));
when(TOASTS, mendToasts);
