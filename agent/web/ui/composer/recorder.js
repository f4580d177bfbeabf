// Records sound: a row with the time, the level, a button that drops the recording, one that attaches it, and one that lets its speech be written down.
import { make } from "../transcript/elements.js";

const TICK_MS = 100, BARS = 48, BITS = 64_000;
const ENDS = { "audio/mp4": "m4a", "audio/ogg": "ogg", "audio/webm": "webm" };

/** A time as 1:05. @param {number} seconds */
export const clock = (seconds) => `${Math.floor(seconds / 60)}:${`${Math.floor(seconds) % 60}`.padStart(2, "0")}`;

/**
 * @param {{labels: Record<string, string>, attach: (files: File[]) => boolean, write?: (files: File[]) => boolean, shows: (is: boolean) => void, left: (event: Event) => void}} options
 *   `shows` is told whether the row is shown, and `left` that its buttons are gone.
 */
export function recorder({ labels, attach, write, shows, left }) {
  const icon = (/** @type {string} */ name, /** @type {string} */ label) =>
    make("button", { type: "button", className: `recorder-${name}`, title: label, "aria-label": label });
  const cancel = icon("cancel", labels.cancel), done = icon("done", labels.done), words = write ? [icon("write", labels.write)] : [];
  const time = make("span", { className: "timestamp", role: "timer" }), state = make("span", { className: "state", role: "status" });
  const level = make("span", { className: "level", "aria-hidden": "true" });
  const row = make("div", { className: "recorder", role: "group", "aria-label": labels.record, hidden: true }, cancel, state, level, time, ...words, done);
  /** @typedef {{stream?: any, recorder?: MediaRecorder, end?: Promise<boolean>, context?: AudioContext, timer?: any}} Recording */
  let give = attach;
  let now = /** @type {Recording | undefined} */ (undefined); // the recording, from the question for the microphone to its end

  const tell = (/** @type {string} */ text, isBad = false) => {
    state.textContent = text;
    state.classList.toggle("bad", isBad);
  };
  const close = () => {
    clearInterval(now?.timer);
    for (const track of now?.stream?.getTracks() ?? []) track.stop();
    now?.context?.close();
    now = undefined;
    row.hidden = true;
    shows(false);
  };
  // Draws the level ten times a second: the newest bar is the last.
  const draw = (/** @type {any} */ mine) => {
    const begun = performance.now(), meter = mine.context.createAnalyser(), samples = new Float32Array(meter.fftSize);
    mine.context.createMediaStreamSource(mine.stream).connect(meter);
    level.replaceChildren(...Array.from({ length: BARS }, () => make("i")));
    mine.timer = setInterval(() => {
      time.textContent = clock((performance.now() - begun) / 1000);
      meter.getFloatTimeDomainData(samples);
      const loud = Math.sqrt(samples.reduce((sum, one) => sum + one * one, 0) / samples.length);
      const bar = level.firstChild;
      bar.style.setProperty("--loud", `${Math.min(1, 3 * loud)}`);
      level.append(bar);
    }, TICK_MS);
  };
  const fileOf = (/** @type {Blob[]} */ pieces, /** @type {string} */ given) => {
    const type = given.split(";")[0], clock = new Date().toTimeString().slice(0, 8).replaceAll(":", "");
    return new File(pieces, `recording-${clock}.${/** @type {any} */ (ENDS)[type] ?? "webm"}`, { type });
  };
  const record = (/** @type {any} */ mine) => {
    const made = (mine.recorder = new MediaRecorder(mine.stream, { audioBitsPerSecond: BITS })), pieces = /** @type {Blob[]} */ ([]);
    made.addEventListener("dataavailable", ({ data }) => data.size && pieces.push(data));
    mine.end = new Promise((then) => made.addEventListener("stop", () => {
      if (now !== mine) return then(false); // it was dropped
      close();
      then(pieces.length > 0 && give([fileOf(pieces, made.mimeType)]));
    }));
    made.start(1000);
  };
  const begin = async () => {
    if (now) return;
    const mine = /** @type {Recording} */ ({}), isLeft = () => now !== mine;
    [now, give] = [mine, attach];
    shows(true);
    row.hidden = false;
    time.textContent = "";
    for (const one of [done, ...words]) one.disabled = true;
    level.replaceChildren();
    tell(labels.waiting);
    cancel.focus();
    try {
      mine.stream = await navigator.mediaDevices.getUserMedia({ audio: true });
      if (isLeft()) return mine.stream.getTracks().forEach((/** @type {MediaStreamTrack} */ track) => track.stop());
      mine.context = new AudioContext();
      record(mine);
      draw(mine);
      mine.stream.getTracks()[0].addEventListener("ended", finish); // it was unplugged
      tell(labels.recording);
      for (const one of [done, ...words]) one.disabled = false;
      done.focus();
    } catch (error) {
      for (const track of mine.stream?.getTracks() ?? []) track.stop();
      if (isLeft()) return;
      const why = { NotAllowedError: labels.refused, SecurityError: labels.refused, NotFoundError: labels.none };
      tell(/** @type {any} */ (why)[/** @type {Error} */ (error).name] ?? labels.trouble, true);
    }
  };
  /** Attach what is recorded. Says whether the recorder is free now. @returns {Promise<boolean>} */
  const finish = async () => {
    if (!now) return true;
    if (!now.recorder) close(); // nothing is recorded yet
    else if (now.recorder.state !== "inactive") now.recorder.stop();
    return now?.end ?? true;
  };
  const drop = (/** @type {Event} */ event) => {
    const { recorder: made } = now ?? {};
    close();
    if (made?.state === "recording") made.stop();
    left(event);
  };
  cancel.addEventListener("click", drop);
  words[0]?.addEventListener("click", async (/** @type {Event} */ event) => {
    give = write ?? attach;
    await finish();
    left(event);
  });
  done.addEventListener("click", async (/** @type {Event} */ event) => {
    await finish();
    left(event);
  });
  return { row, begin, finish };
}
