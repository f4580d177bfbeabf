// The box for a message: a text that grows, attached files, a recorder, and the buttons that send and stop.
import { composes, imported, isSoft, make, sends, styled } from "../transcript/elements.js";

/** The places in the row of buttons, in their order. */
const PLACES = ["attach", "camera", "prompts", "microphone", "voice", "options", "later", "send"];

/**
 * Draw a composer. Its events are called `composer:attach` (with `files`; a listener that prevents it attaches others), `composer:send` (with the message), `composer:later` (an answer runs),
 * `composer:dictate` (with the `file` that was recorded, if there is one), `composer:stop`, `composer:changed` (its value was set), `composer:files` (other files are attached) and `composer:open` (of a `file` of these).
 * @param {{labels: Record<string, string>, language: string, root: string, largest?: number, dictates?: boolean}} options
 *   `root` is the path of the app, `largest` the most bytes of a file, and `dictates` says that the page listens to `composer:dictate`.
 */
export function mount({ labels, language, root, largest, dictates = false }) {
  const icon = (/** @type {string} */ name, /** @type {string} */ place, /** @type {string} */ label) =>
    make("button", { type: "button", className: `${name}-button`, title: label, "aria-label": label, "data-place": place });
  const area = make("textarea", { rows: 1, placeholder: labels.message, "aria-label": labels.message });
  const send = icon("submit", "send", labels.send), stop = icon("stop", "send", labels.stop);
  const clip = icon("attach", "attach", labels.attach), microphone = icon("microphone", "microphone", labels.record);
  const picker = make("input", { type: "file", multiple: true, hidden: true, tabIndex: -1, "aria-label": labels.attach });
  const row = make("div", { className: "buttons" }, clip, send);
  const problem = make("p", { className: "problem", role: "alert" });
  let isRunning = false, submitting = -1, hears = false, moves = 0;
  let late = /** @type {((files: any[]) => void) | undefined} */ (undefined); // gets what is recorded for a chat that was left

  const fire = (/** @type {string} */ name, /** @type {any} */ detail = {}) =>
    element.dispatchEvent(new CustomEvent(`composer:${name}`, { detail, bubbles: true, cancelable: true }));
  const say = (/** @type {string} */ text, /** @type {(() => void) | false} */ again = false) => {
    problem.textContent = text;
    if (!again) return;
    const button = make("button", { type: "button" }, labels.again);
    button.addEventListener("click", again);
    problem.append(" ", button);
  };
  // The text has the focus after a button that is gone, but a touch would open the keyboard.
  const left = (/** @type {any} */ { pointerType }) => void (pointerType === "touch" || area.focus());
  const files = attachments({ labels, language, root, largest, say, fire, left });
  const keep = (/** @type {File[]} */ given) => {
    const before = files.count();
    files.attach(given, true);
    const isAttached = files.count() > before;
    if (late) files.leave(late);
    return isAttached;
  };
  const element = make("div", { className: "composer" }, problem, files.list, area, row, picker);
  let sound = /** @type {any} */ (undefined); // the recorder, which is loaded when it is used
  const record = async () => {
    if (!sound) {
      microphone.disabled = true; // a second press waits
      const found = await imported(new URL("recorder.js", import.meta.url).href);
      microphone.disabled = false;
      if (!found) return say(labels.failed);
      const write = dictates ? (/** @type {File[]} */ [file]) => fire("dictate", { file }) : undefined;
      sound = found.recorder({ labels, attach: keep, write, shows: (/** @type {boolean} */ is) => (row.hidden = is), left });
      picker.before(sound.row);
    }
    sound.begin();
  };
  /** Attach what is recorded, if there is something. Says whether the recorder is free now. @returns {Promise<boolean>} */
  const finish = async () => !sound || sound.finish();

  const grow = () => {
    if (CSS.supports("field-sizing", "content")) return;
    area.style.height = "auto";
    area.style.height = `${area.scrollHeight}px`;
  };
  area.addEventListener("input", grow);
  const isEmpty = () => !area.value.trim() && !files.count();
  const trySubmit = async () => {
    if (!isSoft() || isEmpty()) area.focus(); // a keyboard on the screen would open
    if (submitting === moves) return;
    const before = (submitting = moves); // another chat does not wait for the files of this one
    try {
      if (!(await finish()) || isEmpty()) return;
      if (!(await files.settled()) || isEmpty() || moves !== before) return;
      if (isRunning) return void fire("later");
    } finally {
      if (submitting === before) submitting = -1;
    }
    say("");
    fire("send", { text: area.value, files: files.value() });
  };
  let submitted = Promise.resolve();
  const submit = () => void (submitted = trySubmit());
  area.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (composes(event) || !sends(event)) return;
    event.preventDefault();
    submit();
  });
  send.addEventListener("click", submit);
  stop.addEventListener("click", () => fire("stop"));
  clip.addEventListener("click", () => picker.click());
  microphone.addEventListener("click", () => (hears ? record() : fire("dictate")));
  picker.addEventListener("change", () => {
    const picked = [...picker.files];
    picker.value = "";
    if (picked.length) attach(picked);
  });
  // A text that was copied in an office program comes with a picture of it.
  area.addEventListener("paste", (/** @type {ClipboardEvent} */ event) => {
    const pasted = [...(event.clipboardData?.files ?? [])], text = event.clipboardData?.getData("text") ?? "";
    const isDrawn = text && pasted.every(({ type, name }) => type.startsWith("image/") && !text.includes(name));
    if (!pasted.length || isDrawn) return;
    event.preventDefault();
    attach(pasted);
  });
  const attach = (/** @type {File[]} */ given) => {
    area.focus();
    return given.length > 0 && (!fire("attach", { files: given }) || files.attach(given));
  };

  return {
    element,
    area,
    picker,
    files,
    attach,
    finish,
    isRecording: () => Boolean(sound && !sound.row.hidden),
    isRunning: () => isRunning,
    /** Wait until the last press of the button that sends has sent, or has not. */
    submitted: () => submitted,
    get value() {
      return { text: area.value, files: files.value() };
    },
    set value({ text, files: given }) {
      if (area.value !== text) {
        area.value = text;
        grow();
      }
      files.set(given);
      fire("changed");
    },
    /**
     * Another chat gets the box. What is still recorded or uploaded is given to `keeps` once it is on the server.
     * @param {(files: any[]) => void} keeps
     */
    leave(keeps) {
      moves += 1;
      say("");
      files.leave(keeps);
      late = keeps;
      finish().then(() => (late = undefined));
    },
    /** Show the button that stops an answer, or the one that sends. @param {boolean} is */
    running(is) {
      if (is === isRunning) return;
      isRunning = is;
      stop.removeAttribute("aria-disabled");
      (is ? send : stop).replaceWith(is ? stop : send);
      fire("running");
    },
    /** Put a control into the row. @param {string} name of its place @param {HTMLElement} control */
    place(name, control) {
      control.dataset.place = name;
      const after = [...row.children].find((one) => PLACES.indexOf(one.dataset.place) > PLACES.indexOf(name));
      row.insertBefore(control, after ?? null);
    },
    /** Let the microphone attach sound, if the model takes some, or else write speech into the box, if the page does. @param {boolean} takesSound */
    offerMicrophone(takesSound) {
      if (!(takesSound || dictates) || !navigator.mediaDevices?.getUserMedia || !window.MediaRecorder) return microphone.remove();
      hears = takesSound;
      microphone.title = hears ? labels.record : labels.dictate;
      microphone.setAttribute("aria-label", microphone.title);
      if (!microphone.isConnected) this.place("microphone", microphone);
    },
  };
}

/**
 * Run the component in Gradio. A message that is sent becomes its value, and leaves the box.
 * @param {HTMLElement} element
 * @param {{props: any, trigger: (name: string) => void, watch: (name: string, then: () => void) => void, events: string[]}} gradio
 */
export async function connect(element, { props, trigger, watch, events: [submit, stop] }) {
  await styled(new URL("composer.css", import.meta.url).href);
  const root = new URL(".", document.baseURI).pathname.replace(/\/$/, "");
  const composer = mount({ labels: props.labels, language: props.language, root }), running = () => composer.running(Boolean(props.running));
  composer.element.classList.add("alone");
  composer.offerMicrophone(props.microphone);
  element.append(composer.element);
  element.addEventListener("composer:send", (event) => {
    props.value = /** @type {CustomEvent} */ (event).detail;
    composer.value = { text: "", files: [] };
    trigger(submit);
  });
  element.addEventListener("composer:stop", () => trigger(stop));
  watch("running", running);
  running();
}

// The attached files of a composer: one chip each, with the progress of its upload, its size, and buttons that open and remove it.
const IS_TEXT = /^\.?[^.]+$|\.(txt|md|csv|json|py|log|toml|ya?ml|html|css|js)$/i; // or a name without an ending
const IS_PICTURE = /\.(png|jpe?g|gif|webp|avif|bmp|hei[cf])$/i;

/** The name of an attached file. @param {any} file */
export const nameOf = ({ orig_name, path }) => orig_name || path.split("/").at(-1);
/** A number of bytes for people. @param {number} bytes @param {string} language */
export const bytesIn = (bytes, language) => {
  const [unit, many] = bytes < 1e6 ? ["kilobyte", bytes / 1e3] : ["megabyte", bytes / 1e6];
  return many.toLocaleString(language, { style: "unit", unit, maximumFractionDigits: many < 10 ? 1 : 0 });
};
/** A file on the server, in the form in which Gradio sends it. @param {string} root @param {any} facts */
export const fileAt = (root, { path, name, media_type, size = null }) => {
  const url = new URL(`${root}/gradio_api/file=${path.split("/").map(encodeURIComponent).join("/")}`, location.href).href;
  return { path, url, orig_name: name, size, mime_type: media_type, is_stream: false, meta: { _type: "gradio.FileData" } };
};
/**
 * Upload files at once. Returns them in that form. An error has the server's sentence.
 * @param {string} root
 * @param {File[]} files
 * @param {{language: string, told?: (percent: number) => void, signal?: AbortSignal}} how
 * @returns {Promise<any[]>}
 */
export const upload = (root, files, { language, told, signal }) => new Promise((then, fail) => {
  const body = new FormData();
  for (const file of files) body.append("files", file);
  const request = new XMLHttpRequest(); // fetch reports no progress
  request.open("POST", `${root}/gradio_api/upload`);
  request.setRequestHeader("accept-language", language);
  request.upload.addEventListener("progress", ({ loaded, total }) => told?.(Math.floor((100 * loaded) / total)));
  request.addEventListener("loadend", () => {
    const isText = request.getResponseHeader("content-type")?.startsWith("text/plain"); // of what is over a limit
    let answer = /** @type {any} */ ({ detail: isText ? request.responseText : "" });
    try {
      if (!isText) answer = JSON.parse(request.responseText);
    } catch {
      // there is no network, or a proxy has answered
    }
    if (request.status !== 200 || !Array.isArray(answer)) return fail(new Error(answer?.detail ?? ""));
    then(files.map(({ name, type, size }, n) => fileAt(root, { path: answer[n], name, media_type: type.split(";")[0], size })));
  });
  signal?.addEventListener("abort", () => request.abort());
  request.send(body);
});

/** @param {any} options */
function attachments({ labels, language, root, largest, say, fire, left }) {
  const list = make("ul", { className: "files", role: "list", "aria-label": labels.files, hidden: true });
  /** @typedef {{item: HTMLElement, name: string, file?: any, stored?: Promise<boolean>, keeps?: (files: any[]) => void}} Chip */
  let chips = /** @type {Chip[]} */ ([]);
  const stored = () => chips.filter(({ file }) => file);
  const draw = () => {
    list.hidden = !chips.length;
    const items = chips.map(({ item }) => item);
    for (const one of [...list.children]) if (!items.includes(one)) one.remove();
    for (const [n, item] of items.entries()) if (list.children[n] !== item) list.insertBefore(item, list.children[n] ?? null);
  };
  const changed = () => {
    draw();
    fire("files");
  };
  const drop = (/** @type {Chip} */ chip, /** @type {Event} */ event) => {
    const at = chips.indexOf(chip), hadFocus = list.contains(document.activeElement);
    if (at < 0) return;
    chips = chips.toSpliced(at, 1);
    say("");
    chip.file ? changed() : draw();
    const next = chips[Math.min(at, chips.length - 1)]?.item.querySelector(".remove-button");
    next instanceof HTMLElement && hadFocus ? next.focus() : left(event);
  };

  /** @param {string} name @returns {Chip} */
  const chipOf = (name) => {
    const remove = make("button", { type: "button", className: "remove-button" });
    remove.title = labels.remove.replace("{name}", () => name);
    remove.setAttribute("aria-label", remove.title);
    const chip = { name, item: make("li", { className: "file" }, remove) };
    remove.addEventListener("click", (/** @type {Event} */ event) => drop(chip, event));
    return chip;
  };
  /** A chip of what is not on the server yet. @param {string} name */
  const waiting = (name) => {
    const chip = chipOf(name);
    chip.item.prepend(
      make("span", { className: "loader", role: "progressbar", "aria-label": labels.uploading, "aria-valuemin": "0", "aria-valuemax": "100" }),
      make("span", { className: "file-name", title: name, dir: "auto", "data-size": labels.uploading }, name));
    return chip;
  };
  const endOf = (/** @type {string} */ name) => /\.(\w{1,4})$/.exec(name)?.[1].toUpperCase() ?? "…";
  /** Show the file of a chip. @param {Chip} chip @param {any} file */
  const fill = (chip, file, canShow = true) => {
    const { item, name } = Object.assign(chip, { file });
    const isPicture = canShow && (IS_PICTURE.test(name) || /^image\/(?!svg)/.test(file.mime_type ?? "")), isText = canShow && !isPicture && IS_TEXT.test(name);
    const size = file.size ? bytesIn(Math.max(file.size, 100), language) : "", kind = endOf(name);
    const facts = { title: size ? `${name} · ${size}` : name, dir: "auto", "data-size": size, "data-kind": kind };
    const open = labels.open.replace("{name}", () => name);
    const shown = isPicture || isText
      ? make("button", { type: "button", className: isText ? "open-text" : "open-picture", "aria-label": open, ...facts }, name)
      : make("span", { className: "file-name", ...facts }, name);
    shown.addEventListener("click", () => (isPicture || isText) && fire("open", { file: chip.file, isPicture, item }));
    if (isPicture) shown.prepend(make("img", { alt: "", src: file.url, draggable: false }));
    // A picture that this browser cannot show, such as HEIC, shows its type instead.
    shown.firstElementChild?.addEventListener("error", () => fill(chip, file, false));
    for (const one of item.querySelectorAll(":scope > :not(.remove-button)")) one.remove();
    item.prepend(shown);
    return chip;
  };

  /** Attach files, all or none. Returns false if there is none. `isOnly`: they are nowhere else. @param {File[]} files */
  const attach = (files, isOnly = false) => {
    if (!files.length) return false;
    const tooLarge = files.filter(({ size }) => largest && size > largest).map(({ name }) => name);
    if (tooLarge.length) {
      const most = bytesIn((largest / 2 ** 20) * 1e6, language); // as the settings count it
      say(labels.tooLarge.replace("{most}", most).replace("{names}", () => tooLarge.join(", ")));
      return true;
    }
    say("");
    const fresh = files.map(({ name }) => waiting(name)), loaders = /** @type {HTMLElement[]} */ (fresh.map(({ item }) => item.firstElementChild));
    const control = new AbortController(), isWanted = (/** @type {Chip} */ chip) => chips.includes(chip) || Boolean(chip.keeps);
    const told = (/** @type {number} */ done) => {
      for (const loader of loaders) {
        loader.dataset.done = `${done} %`;
        loader.style.setProperty("--done", `${done}%`);
        loader.setAttribute("aria-valuenow", `${done}`);
      }
    };
    const isStored = upload(root, files, { language, told, signal: control.signal }).then((found) => {
      for (const [n, { keeps }] of fresh.entries()) keeps?.([found[n]]);
      const wanted = fresh.filter((chip) => chips.includes(chip));
      for (const chip of wanted) fill(chip, found[fresh.indexOf(chip)]);
      if (wanted.length) changed();
      return true;
    }, ({ message }) => {
      const isGivenUp = !fresh.some(isWanted);
      chips = chips.filter((chip) => !fresh.includes(chip));
      draw();
      if (!isGivenUp) say(message || labels.failed, isOnly && (() => attach(files, true)));
      return isGivenUp;
    });
    for (const chip of fresh) {
      chip.stored = isStored;
      chip.item.querySelector(".remove-button")?.addEventListener("click", () => fresh.some(isWanted) || control.abort());
    }
    chips = [...chips, ...fresh];
    draw();
    return true;
  };

  const settled = async () => (await Promise.all(chips.map(({ file, stored }) => file || stored))).every(Boolean);
  /** Show a chip until the files are made that stand for it, and attach these. @param {string} name @param {Promise<File[]>} made */
  const expect = (name, made) => {
    const chip = waiting(name);
    chip.stored = made.then(async (files) => {
      const isWanted = chips.includes(chip);
      chips = chips.filter((one) => one !== chip);
      draw();
      if (chip.keeps) chip.keeps(await upload(root, files, { language }));
      return !isWanted || (attach(files) && (await settled()));
    }).catch(() => {
      const isGivenUp = !chips.includes(chip);
      chips = chips.filter((one) => one !== chip);
      draw();
      return isGivenUp;
    });
    chips = [...chips, chip];
    draw();
  };

  return {
    list,
    attach,
    expect,
    /** The files that are on the server. */
    value: () => stored().map(({ file }) => file),
    /** Show these files instead of those that are on the server. @param {any[]} files */
    set(files) {
      const before = chips, isSame = files.length === stored().length && files.every((file, n) => stored()[n].file === file);
      if (isSame) return;
      const shown = files.map((file) => before.find((chip) => chip.file === file) ?? fill(chipOf(nameOf(file)), file));
      chips = [...shown, ...before.filter(({ file }) => !file)];
      changed();
    },
    /** Take out what is being uploaded, and give it to `keeps` once it is on the server. @param {(files: any[]) => void} keeps */
    leave(keeps) {
      for (const chip of chips) if (!chip.file) chip.keeps = keeps;
      chips = stored();
      draw();
    },
    count: () => chips.length,
    names: () => chips.map(({ name }) => name),
    isUploading: () => chips.some(({ file }) => !file),
    /** Wait for the uploads. Says whether none was refused. */
    settled,
  };
}
