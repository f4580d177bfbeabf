// Helpers of the page's modules. `said` are the texts of page_text.py in the language of the page.
import { diagrams, language, later, python, rates, said } from "texts";
import { mount } from "../composer/composer.js";
import { bytesIn, nameOf } from "../composer/composer.js";
import { composes, make } from "../transcript/elements.js";

export { diagrams, language, make, nameOf, python, rates, said };
/** @type {(selector: string, root?: ParentNode) => any} */
export const $ = (selector, root = document) => root.querySelector(selector);
export const when = (selector, then) => {
  const found = $(selector);
  if (found) return then(found);
  setTimeout(() => when(selector, then), 50);
};
export const frame = () => new Promise((done) => {
  const hidden = setTimeout(done, 100); // a hidden page has no frames
  requestAnimationFrame(() => (clearTimeout(hidden), done()));
});
export const button = (name, text, then = undefined) => {
  const made = make("button", { type: "button", class: name }, text);
  if (then) made.addEventListener("click", then);
  return made;
};
export const root = location.pathname.replace(/\/c\/[^/]*$/, "").replace(/\/$/, ""); // the path of the app, behind a proxy, too


/** The composer, and its text. It is in the page as soon as Gradio has its place. */
export const editor = mount({ labels: said.composer, language, root, largest: gradio_config.max_file_size, dictates: true });
export const box = () => editor.area;
/** The settings. page.js puts them into the page. */
export const panel = makePanel();
when("#composer", (place) => {
  place.append(editor.element);
  editor.area.focus();
});

/**
 * What the page shows: live.js sets it. `guest` is the token of a guest, who has no cookies. page.js sets the chosen
 * `model`, undefined until the server has named one, and the `effort` of reasoning, "" for the model's own. compare.js sets
 * `compare`, which gives the fields of a message that other models answer, too.
 * folders.js sets `into`, the folder of a new chat.
 * @type {{conversation: string, guest: string, turns: any[], transcript: any, model: string | undefined, effort: string, compare?: any, into?: {folder: string}}}
 */
export const shown = { conversation: "", guest: "", turns: [], transcript: undefined, model: undefined, effort: "" };
/** The chat in the address of the page. */
export const inAddress = () => /\/c\/([\w-]+)$/.exec(location.pathname)?.[1] ?? "";
/** Begins the id of a temporary chat. As an id, it begins one with the first message. */
export const TEMPORARY = "temporary";
export const isTemporary = (id) => id.startsWith(TEMPORARY);

// A key that an input method uses in a field confirms or cancels what is composed, and nothing else: no script gets it, and
// neither does Gradio.
let composed = false; // with the last key
for (const kind of /** @type {const} */ (["keydown", "keypress"])) {
  window.addEventListener(kind, (event) => {
    composed = composes(event) || (composed && kind === "keypress");
    if (!composed || !event.target.matches?.("input, textarea")) return;
    event.stopImmediatePropagation();
    if (event.key === "Enter" && kind === "keypress") event.preventDefault();
  }, true);
}

// A hint above the composer that disappears by itself, or as soon as `isSo` no longer returns true. It is asked again and
// again, because what a hint says can end in many ways: by a key, a button, another script or the server.
const note = make("p", { id: "hint", role: "status" });
when("#dock", (dock) => {
  dock.append(note);
  // What floats above the composer floats above the notes between the chat and the composer, too.
  const foot = dock.parentElement;
  const moved = (one) => new DOMMatrix(getComputedStyle(one).transform).m42; // the dock glides to the foot of a new chat
  const top = (one) => one.getBoundingClientRect().top - moved(one);
  const sizes = new ResizeObserver(() => {
    let first = foot;
    for (let one = foot; one && one.id !== "chat"; one = one.previousElementSibling) if (one.offsetHeight) first = one;
    dock.style.setProperty("--notes", `${top(dock) - top(first)}px`);
  });
  for (const around of [foot, foot.parentElement]) {
    const observe = () => [...around.children].forEach((one) => sizes.observe(one));
    new MutationObserver(observe).observe(around, { childList: true });
    observe();
  }
});
let leaving;
export const hint = (text, isSo = () => true, seconds = 6) => {
  clearInterval(leaving);
  note.textContent = text;
  let left = 10 * seconds; // times 100 ms
  if (text) leaving = setInterval(() => (left-- && isSo()) || hint(""), 100);
};

/** @param {"sessionStorage" | "localStorage"} name */
const stored = (name) => {
  try {
    return window[name];
  } catch {
    return undefined; // a browser that blocks third-party cookies gives no storage to a page in a frame
  }
};
/** What the browser keeps, of this tab and of all, if it gives the page a storage. */
export const [ofTab, ofAll] = [stored("sessionStorage"), stored("localStorage")];
/** Keeps values over a reload of this tab. */
export const kept = {
  get: (name) => {
    try {
      return JSON.parse(ofTab?.getItem(name) ?? null) ?? undefined;
    } catch {
      return undefined;
    }
  },
  set: (name, value) => {
    try {
      if (value === undefined) ofTab?.removeItem(name);
      else ofTab?.setItem(name, JSON.stringify(value));
    } catch {
      // nothing is kept
    }
  },
};

/** Load the style of a module. */
const dress = (name) => new Promise((done, fail) => {
  const link = make("link", { rel: "stylesheet", href: new URL(`./${name}.css`, import.meta.url).href });
  link.addEventListener("load", done);
  link.addEventListener("error", () => (link.remove(), fail(new Error(`${name} was not loaded`))));
  document.head.append(link);
});
const loading = {};
let failures = 0;
/** Import a module that few visits need, after the texts of all of them, which are a module, too. A browser asks again for
 * what was not loaded by another address only. */
export const late = async (name) => {
  try {
    if (later) Object.assign(said, (await import(`${later}#${failures}`)).said);
    return await import(`./${name}.js#${failures}`);
  } catch (error) {
    failures++;
    throw error;
  }
};
/** Load such a module, and its style. */
export const load = (name) => (loading[name] ??= Promise.all([late(name), dress(name)]).then(([module]) => module, (error) => {
  delete loading[name];
  throw error;
}));

/**
 * The settings: what is set, what is said of each of them (a sentence as its `info`, whether the model has it `fixed`, its `usual`
 * value, and the `most` that the model takes), and a side bar that settings.js fills before it is opened. Their events are
 * `settings:changed` (the visitor has set `name` to `value`; `isTyped`: and goes on typing), `settings:shown` (they show other
 * values or facts), and `settings:toggled` (they were opened or closed).
 */
function makePanel() {
  let values = /** @type {Record<string, any>} */ ({}), about = /** @type {Record<string, any>} */ ({}), isOpen = false;
  let isWritten = false; // the visitor writes the system prompt, so that what the server says of it comes too late
  const labels = said.settings, content = make("div", { class: "content" });
  const toggle = make("button", { type: "button", class: "toggle", title: labels.toggle, "aria-label": labels.toggle, "aria-expanded": "false" });
  const element = make("aside", { class: "settings", "aria-label": labels.settings }, toggle, content);
  const fire = (name, detail = {}) => element.dispatchEvent(new CustomEvent(`settings:${name}`, { detail, bubbles: true }));
  const open = async (is) => {
    if (is && !(await load("settings").catch(() => hint(said.chats_failed)))) return;
    isOpen = is;
    toggle.setAttribute("aria-expanded", `${is}`);
    element.classList.toggle("open", is);
    fire("toggled");
  };
  toggle.addEventListener("click", () => open(!isOpen));
  return {
    element, toggle, content, open,
    isOpen: () => isOpen,
    /** What is set. The system prompt is missing until the server has named it. */
    values: () => values,
    about: (name) => about[name] ?? {},
    /** What the visitor sets. */
    set: (name, value, isTyped = false) => {
      values = { ...values, [name]: value };
      fire("changed", { name, value, isTyped });
    },
    write: (is) => (isWritten = is),
    /** Show what the server says. What it leaves out stays. */
    show: ({ about: facts = {}, ...given }) => {
      const written = isWritten && { system_message: values.system_message };
      [values, about] = [{ ...values, ...given, ...written }, { ...about, ...facts }];
      fire("shown");
    },
    /** All that is shown, in the form of `show`. */
    value: () => ({ ...values, about }),
  };
}

/**
 * Saved prompts, in the storage of the browser: a list that opens at "/" in an empty composer, and a button for a dialog.
 * prompts.js has both. Without a storage nothing of it is offered.
 */
export const prompts = offerPrompts();
function offerPrompts() {
  const KEY = "prompts", isPrompt = (one) => typeof one?.name === "string" && typeof one.text === "string";
  // They are read each time, because another tab can change them.
  const read = () => {
    try {
      return JSON.parse(ofAll.getItem(KEY) ?? "[]").filter(isPrompt);
    } catch {
      return [];
    }
  };
  let module;
  const loaded = () => load("prompts").then((found) => (module = found), () => hint(said.chats_failed));
  const opener = button("prompts-button", "", async () => (await loaded())?.open());
  opener.setAttribute("aria-label", said.prompts);
  opener.title = said.prompts;
  // Offers the prompts, if there is one or a text to save.
  const offer = () => {
    if (!ofAll || !(box().value.trim() || read().length)) return opener.remove();
    if (!opener.isConnected) editor.place("prompts", opener);
  };
  window.addEventListener("keydown", (event) => module?.press(event), true);
  document.addEventListener("input", async ({ target }) => {
    if (!ofAll || target !== box()) return;
    offer();
    if (module || box().value.startsWith("/")) (module ?? (await loaded()))?.look();
  });
  document.addEventListener("composer:changed", offer);
  document.addEventListener("focusin", ({ target }) => target === box() && offer());
  document.addEventListener("own-data-deleted", () => {
    ofAll?.removeItem(KEY);
    offer();
  });
  offer();
  return { KEY, read, offer };
}

/** The values of two composers as one. */
export const joined = (...values) => ({
  text: values.map((value) => value?.text ?? "").filter((text) => text.trim()).join("\n\n"),
  files: values.flatMap((value) => value?.files ?? []),
});
/** A number of bytes for people. */
export const sizeOf = (bytes) => bytesIn(bytes, language);
