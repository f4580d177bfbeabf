// Makes pictures and a sound of a video in the visitor's browser, for models that take no videos: each picture has its time
// below it. Loaded with the first video.
import { clock } from "../composer/recorder.js";
import { wavOf } from "../composer/spoken.js";
import { hint, said } from "./shared.js";

const MOST_PICTURES = 8, MOST_SECONDS = 600;
const LONGEST = 1024, RATE = 16000, WAIT_MS = 20000;

/** The times of the pictures, in seconds, in the middle of equal parts. @param {number} seconds */
const timesOf = (seconds) => {
  const count = Math.max(1, Math.min(MOST_PICTURES, Math.round(seconds / 2)));
  return Array.from({ length: count }, (_, n) => (n + 0.5) * seconds / count);
};
/** Wait for an event of a video. @param {HTMLVideoElement} video @param {string} kind */
const next = (video, kind) => new Promise((done, fail) => {
  const timer = setTimeout(() => fail(new Error("this takes too long")), WAIT_MS);
  const end = (/** @type {() => void} */ act) => () => (clearTimeout(timer), act());
  video.addEventListener(kind, end(() => done(undefined)), { once: true });
  video.addEventListener("error", end(() => fail(new Error(video.error?.message))), { once: true });
});
const seek = async (/** @type {HTMLVideoElement} */ video, /** @type {number} */ to) => {
  const sought = next(video, "seeked");
  video.currentTime = to;
  await sought;
};

/** The sound of a file, or nothing if it has none. @param {File} file @param {string} stem */
const soundOf = async (file, stem) => {
  try {
    const heard = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(await file.arrayBuffer());
    const samples = new Float32Array(heard.length);
    for (let channel = 0; channel < heard.numberOfChannels; channel++) {
      heard.getChannelData(channel).forEach((one, n) => (samples[n] += one / heard.numberOfChannels));
    }
    return samples.some((one) => Math.abs(one) > 0.001) ? [new File([wavOf([samples], RATE)], `${stem}.wav`, { type: "audio/wav" })] : [];
  } catch {
    return []; // no sound, or none that this browser can decode
  }
};

/**
 * Pictures and the sound of a video. Raises a RangeError for one that is too long, and any other error for one that this
 * browser cannot play.
 * @param {File} file
 * @param {{pictures: boolean, sound: boolean}} wanted
 * @returns {Promise<File[]>}
 */
const made = async (file, wanted) => {
  const stem = file.name.replace(/\.\w+$/, ""), url = URL.createObjectURL(file);
  const video = Object.assign(document.createElement("video"), { muted: true, playsInline: true, preload: "auto", src: url });
  const parts = [];
  try {
    if (video.readyState < 2) await next(video, "loadeddata");
    if (!Number.isFinite(video.duration)) await seek(video, 1e9); // a recording of a browser says no length
    const seconds = video.duration;
    if (seconds > MOST_SECONDS) throw new RangeError(file.name);
    const by = Math.min(1, LONGEST / Math.max(video.videoWidth, video.videoHeight));
    const width = Math.round(video.videoWidth * by), height = Math.round(video.videoHeight * by), strip = Math.max(18, Math.round(height / 16));
    for (const time of wanted.pictures && width ? timesOf(seconds) : []) {
      await seek(video, time);
      const canvas = Object.assign(document.createElement("canvas"), { width, height: height + strip });
      const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
      pen.drawImage(video, 0, 0, width, height);
      pen.fillRect(0, height, width, strip);
      Object.assign(pen, { fillStyle: "#fff", font: `${Math.round(strip * 0.7)}px system-ui, sans-serif`, textBaseline: "middle" });
      pen.fillText(`${clock(time)} / ${clock(seconds)}`, strip / 3, height + strip / 2);
      const blob = await new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.85));
      if (!blob) throw new Error(file.name);
      parts.push(new File([blob], `${stem} ${clock(time).replace(":", "-")}.jpg`, { type: "image/jpeg" }));
    }
    if (wanted.sound) parts.push(...(await soundOf(file, stem)));
  } finally {
    URL.revokeObjectURL(url);
    video.removeAttribute("src");
    video.load();
  }
  return parts;
};

/** Return the parts of a video, and say what they are. Raises an error if there are none, and says why. @param {File} file @param {{pictures: boolean, sound: boolean}} wanted */
export const partsOf = async (file, wanted) => {
  const tell = (/** @type {string} */ text) => hint(text.replace("{name}", () => file.name), undefined, 12);
  let parts;
  try {
    parts = await made(file, wanted);
  } catch (error) {
    tell(error instanceof RangeError ? said.film_long : said.film_unreadable);
    throw error;
  }
  if (!parts.length) {
    tell(said.film_empty);
    throw new Error(file.name);
  }
  const pictures = parts.filter(({ type }) => type.startsWith("image/")).length;
  const text = parts.length > pictures ? said.film_parts : wanted.sound ? said.film_pictures : said.film_deaf;
  tell(text.replace("{count}", `${pictures}`));
  return parts;
};
