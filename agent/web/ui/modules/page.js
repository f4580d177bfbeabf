// The page: the modules that each visit needs, the settings and the options in the composer, keyboard shortcuts, and what
// Gradio's widgets say otherwise than this page wants. A module that comes first hears a key or a click first.
import { composes, isSoft } from "../transcript/elements.js";
import { choose } from "./network.js";
import "./composer.js";
import "./chats.js";
import { TOASTS, answer, call, mendToasts } from "./gradio.js";
import { live } from "./live.js";
import { $, box, editor, hint, kept, load, make, panel, said, shown, when } from "./shared.js";

// The options in the composer: switches for reasoning, tools and the web, which are those of the settings once more, the effort of
// reasoning, and a button with the name of the model. It opens the list of models: models.js, which is loaded when it is used.
const LATE_MS = 600;
const name = make("span", { dir: "auto" });
const model = make("button", { type: "button", id: "model-button", "aria-haspopup": "dialog", "aria-expanded": "false" }, name);
const switches = ["reasoning", "tools", "web"].map((of) => {
  const label = said.settings[of];
  const one = make("button", { type: "button", role: "switch", class: `switch ${of}`, "aria-label": label, hidden: true }, make("span", {}, label));
  one.addEventListener("click", () => (panel.about(of).fixed ? hint(one.title) : panel.set(of, !panel.values()[of])));
  return [of, one];
});
const effort = make("select", { "aria-label": said.effort, title: said.effort });
const efforts = make("span", { class: "effort", hidden: true }, effort);
const [[, reasoning], [, tools], [, web]] = switches;
const options = make("div", { class: "options", role: "group", "aria-label": said.options }, reasoning, efforts, tools, web, model);
/** @type {any} */
let facts = {}; // what the server says of the chosen model: see `shown_model` in components.py
let named; // the id of the model whose name is shown
let waits; // the timer of the visitor's choice, while the server has not answered yet

// The words of the switches make room for the name of the model. If that is not enough, the options get a row of their own:
// on a narrow screen already if the name is cut, so that nothing moves when typing adds a button.
const isNarrow = matchMedia("(max-width: 640px)");
const isWide = () => options.scrollWidth > options.clientWidth, isCut = () => name.scrollWidth > name.clientWidth;
const tighten = () => {
  options.classList.remove("tight");
  options.classList.toggle("tight", isCut() || isWide());
};
const fit = () => {
  $("#dock")?.removeAttribute("data-rows");
  tighten();
  if (!isWide() && !(isNarrow.matches && isCut())) return;
  $("#dock")?.setAttribute("data-rows", "3");
  tighten();
};
new ResizeObserver(fit).observe(options);

// Shows what the boxes show. A box that is off and cannot be turned on is of a model that has no such ability.
const show = () => {
  for (const [of, one] of switches) {
    const checked = Boolean(panel.values()[of]), { fixed: disabled = false, info } = panel.about(of);
    one.hidden = !name.textContent || (disabled && !checked);
    one.setAttribute("aria-checked", checked);
    one.setAttribute("aria-disabled", disabled);
    one.title = info || said.settings[of];
  }
  efforts.hidden = !effort.length || !panel.values().reasoning;
  fit();
};
// Shows the efforts of the chosen model, and the one that it is asked for.
const offer = () => {
  const given = JSON.stringify(facts.efforts ?? []);
  if (effort.dataset.given !== given) effort.replaceChildren(...(facts.efforts ?? []).map(([value, label]) => make("option", { value }, label)));
  effort.dataset.given = given;
  effort.value = shown.effort;
};
const entitle = (text) => {
  name.textContent = text;
  model.hidden = !text;
  model.title = text;
  model.setAttribute("aria-label", said.model_named.replace("{name}", () => text));
  show();
};
// The name, the switches and the panel for a key change in one step, when the server has answered. If that takes long,
// the name changes, and what belongs to the model before is hidden.
const busy = (is, label) => {
  const late = () => {
    entitle(label);
    document.documentElement.toggleAttribute("data-choosing", true);
  };
  clearTimeout(waits);
  waits = is ? setTimeout(late, LATE_MS) : undefined;
  model.setAttribute("aria-busy", is);
  if (!is) document.documentElement.removeAttribute("data-choosing");
};
// The captions do not repeat the name of the model that is shown here. Paper does not show it.
const repeated = make("style");
document.head.append(repeated);
const settled = () => {
  const id = encodeURIComponent(facts.id ?? "").replaceAll("'", "%27");
  repeated.textContent = `@media screen { #chat .caption .model[class~="${id}"] { display: none; } }`;
  if (waits && facts.id !== named) return;
  busy(false);
  offer();
  offerOthers();
  named = shown.model = facts.id;
  entitle(facts.label ?? "");
  document.dispatchEvent(new Event("model-settled"));
  live.measure();
};
entitle("");
effort.addEventListener("change", () => {
  shown.effort = effort.value;
  choose({ effort: shown.effort }).catch(({ message }) => hint(message));
});

const open = async (opener, use) => {
  const models = await load("models").catch(() => hint(said.chats_failed));
  models?.open(opener, named, use ?? pick);
};
model.addEventListener("click", () => open(model));
model.addEventListener("keydown", (event) => {
  if (!["ArrowDown", "ArrowUp"].includes(event.key)) return;
  event.preventDefault();
  open(model);
});
// The button beside "Retry" is for another model. That makes the new version, and the composer keeps its own, because a
// visitor who compares answers goes on with the model of the chat.
const offerOthers = () => document.documentElement.toggleAttribute("data-others", Boolean(facts.has_others));
const preload = () => void load("models").catch(() => undefined);
when("#chat", (chat) => {
  const other = '[data-action="retry-with"]';
  chat.addEventListener("transcript:retry-with", ({ detail: { turn } }) => {
    open($(`[data-turn="${CSS.escape(turn)}"] ${other}`, chat), (id) => live.actions.retryWith(turn, id));
  });
  for (const kind of ["pointerover", "focusin"]) chat.addEventListener(kind, ({ target }) => target.closest(other) && preload());
});
for (const kind of ["pointerenter", "focus"]) model.addEventListener(kind, preload, { once: true });
// Chooses a model. The server can refuse a name: the event says so.
function pick(id, label) {
  named = shown.model = id;
  busy(true, label);
  choose({ model: id }).catch(() => undefined);
  const tell = () => call("pick");
  editor.finish().then(tell); // a recording that still runs is attached
}
document.addEventListener("model-wanted", ({ detail: { id, label } }) => pick(id, label));
answer("picked model", () => shown.model);
answer("model settled", (value) => {
  if (value?.asked !== undefined && value.asked !== shown.model) return; // another one was chosen meanwhile
  named = value?.id;
  shown.effort = value?.effort ?? "";
  tell(value);
  if (value?.problem) hint(value.problem, () => named === value.id, 20);
});
answer("model not chosen", () => {
  named = shown.model = facts.id;
  settled();
});
function tell(value) {
  if (value?.id !== facts.id || value?.effort !== facts.effort) shown.effort = value?.effort ?? "";
  facts = value ?? {};
  settled();
}
answer("chosen", tell);
document.addEventListener("click", ({ target }) => {
  const button = target.closest?.("#attached button[data-model]");
  if (button) pick(button.dataset.model, button.textContent);
  else if (target.closest?.("#switch button")) call("switch");
  else if (target.closest?.("#key-forget button")) call("forget");
});
document.addEventListener("submit", (event) => {
  if (!event.target.matches("#key-box form")) return;
  event.preventDefault();
  if ($("#key-box input").value) call("use_key");
});
answer("typed key", (_, model) => {
  const box = $("#key-box input"), typed = box.value;
  box.value = "";
  return [typed, model];
});

editor.place("options", options);
for (const change of ["settings:changed", "settings:shown"]) document.addEventListener(change, show);
// The settings. Their values are those of their component, whose own parts, such as the login, come last.
answer("settings", ({ element, props, watch }) => {
  panel.content.append(...[...element.children].slice(1, -1));
  element.append(panel.element);
  const take = () => {
    panel.show(JSON.parse(JSON.stringify(props.value)));
    props.value = panel.value();
  };
  watch("value", take);
  take();
  panel.element.addEventListener("settings:changed", ({ detail: { name: of, value, isTyped } }) => {
    props.value = panel.value();
    if (of === "extract_text") call("extract");
    else choose({ [of]: value }, isTyped).catch(({ message }) => hint(message));
  });
});

// Keys. The window handles them before Gradio.
const shortcuts = document.createElement("dialog");
shortcuts.id = "shortcuts";
shortcuts.setAttribute("aria-labelledby", "shortcuts-title");
const rows = [["send", isSoft() ? "ctrl_enter" : "enter"], ["newline", isSoft() ? "enter" : "shift_enter"], ["stop", "escape"], ["edit", "up"], ["prompts", "slash"],
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
    if ($("[popover=auto]:popover-open") || event.target.closest?.(".artifact, #find")) return; // they close themselves
    if (editor.isRunning()) $("#composer .stop-button").click();
    else if (panel.isOpen() && panel.element.contains(event.target)) {
      event.preventDefault(); // it does nothing else
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
document.addEventListener("settings:toggled", () => {
  document.documentElement.dataset.settings = panel.isOpen() ? "open" : "closed"; // for the style of the page
});
if (kept.get("language-chosen")) load("settings").catch(() => hint(said.chats_failed)); // they open again

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
