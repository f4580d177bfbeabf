// The box for a message: a text that grows, attached files, a recorder, and the buttons that send and stop.
import { composes, make, sends, soft } from "../../transcript/modules/elements.js";
import { attachments } from "./files.js";

/** The places in the row of buttons, in their order. */
const PLACES = ["attach", "camera", "prompts", "microphone", "voice", "options", "later", "send"];

/**
 * Draw a composer. Its events are called `composer:send` (with the message), `composer:later` (an answer runs),
 * `composer:dictate` (with the `file` that was recorded, if there is one), `composer:stop`, `composer:changed` (its value was set), `composer:files` (other files are attached) and `composer:open` (of a `file` of these).
 * @param {{labels: Record<string, string>, language: string, root: string, largest?: number}} options
 *   `root` is the path of the app, and `largest` the most bytes of a file.
 */
export function mount({ labels, language, root, largest }) {
  const icon = (/** @type {string} */ name, /** @type {string} */ place, /** @type {string} */ label) =>
    make("button", { type: "button", className: `${name}-button`, title: label, "aria-label": label, "data-place": place });
  const area = make("textarea", { rows: 1, placeholder: labels.message, "aria-label": labels.message });
  const send = icon("submit", "send", labels.send), stop = icon("stop", "send", labels.stop);
  const clip = icon("attach", "attach", labels.attach), microphone = icon("microphone", "microphone", labels.record);
  const picker = make("input", { type: "file", multiple: true, hidden: true, tabIndex: -1, "aria-label": labels.attach });
  const row = make("div", { className: "buttons" }, clip, send);
  const problem = make("p", { className: "problem", role: "alert" });
  let isRunning = false, isSubmitting = false, hears = false, moves = 0;
  let late = /** @type {((files: any[]) => void) | undefined} */ (undefined); // gets what is recorded for a chat that was left

  const fire = (/** @type {string} */ name, /** @type {any} */ detail = {}) =>
    element.dispatchEvent(new CustomEvent(`composer:${name}`, { detail, bubbles: true }));
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
  let sound = /** @type {any} */ (undefined), loads = 0; // the recorder, which is loaded when it is used
  const record = async () => {
    if (!sound) {
      microphone.disabled = true; // a second press waits
      const found = await import(`./recorder.js#${loads++}`).catch(() => undefined); // a browser asks again by another address only
      microphone.disabled = false;
      if (!found) return say(labels.failed);
      const write = (/** @type {File[]} */ [file]) => fire("dictate", { file });
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
  const submit = async () => {
    if (!soft.matches || isEmpty()) area.focus(); // a keyboard on the screen would open
    if (isSubmitting) return;
    isSubmitting = true;
    const before = moves;
    try {
      if (!(await finish()) || isEmpty()) return;
      if (!(await files.settled()) || isEmpty() || moves !== before) return;
      if (isRunning) return void fire("later");
    } finally {
      isSubmitting = false;
    }
    say("");
    fire("send", { text: area.value, files: files.value() });
  };
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
    return files.attach(given);
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
    /** Let the microphone attach sound, if the model takes some, or else write speech into the box. @param {boolean} takesSound */
    offerMicrophone(takesSound) {
      if (!navigator.mediaDevices?.getUserMedia || !window.MediaRecorder) return microphone.remove();
      hears = takesSound;
      microphone.title = hears ? labels.record : labels.dictate;
      microphone.setAttribute("aria-label", microphone.title);
      if (!microphone.isConnected) this.place("microphone", microphone);
    },
  };
}
