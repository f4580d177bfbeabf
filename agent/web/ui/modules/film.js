// Decides how a model gets a video: as a whole, or as pictures and a sound that are made in the visitor's browser. Each
// picture has its time below it. Loaded with the first video.
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

/** Open a video in this browser for as long as it is used. Raises an error if the browser cannot play it.
 * @template T @param {File} file @param {(video: HTMLVideoElement, seconds: number) => T | Promise<T>} use */
const withVideo = async (file, use) => {
  const url = URL.createObjectURL(file);
  const video = Object.assign(document.createElement("video"), { muted: true, playsInline: true, preload: "auto", src: url });
  try {
    if (video.readyState < 2) {
      const loaded = next(video, "loadeddata");
      video.play().catch(() => {}); // iOS loads no picture before a video plays
      await loaded;
      video.pause();
    }
    if (!Number.isFinite(video.duration)) await seek(video, 1e9); // a recording of a browser says no length
    return await use(video, video.duration);
  } finally {
    URL.revokeObjectURL(url);
    video.removeAttribute("src");
    video.load();
  }
};

/** Pictures of a video, with their times. @param {HTMLVideoElement} video @param {number} seconds @param {string} stem */
const picturesOf = async (video, seconds, stem) => {
  const by = Math.min(1, LONGEST / Math.max(video.videoWidth, video.videoHeight)), pictures = [];
  const width = Math.round(video.videoWidth * by), height = Math.round(video.videoHeight * by), strip = Math.max(18, Math.round(height / 16));
  for (const time of width ? timesOf(seconds) : []) {
    await seek(video, time);
    const canvas = Object.assign(document.createElement("canvas"), { width, height: height + strip });
    const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    pen.drawImage(video, 0, 0, width, height);
    pen.fillRect(0, height, width, strip);
    Object.assign(pen, { fillStyle: "#fff", font: `${Math.round(strip * 0.7)}px system-ui, sans-serif`, textBaseline: "middle" });
    pen.fillText(`${clock(time)} / ${clock(seconds)}`, strip / 3, height + strip / 2);
    const blob = await new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.85));
    if (!blob) throw new Error(stem);
    pictures.push(new File([blob], `${stem} ${clock(time).replace(":", "-")}.jpg`, { type: "image/jpeg" }));
  }
  return pictures;
};

/** What this model takes of a whole video, by the facts that the page has about it. @param {DOMStringMap} about */
const limitsOf = (about) => ({
  types: about.video?.split(" ") ?? [],
  bytes: Math.min(Number(about.videoBytes) || Infinity, /** @type {any} */ (globalThis).gradio_config.max_file_size),
  seconds: Number(about.videoSeconds) || Infinity,
});

/**
 * The files that stand for a video: the video, if the model takes it as a whole, or its pictures and its sound. Says what
 * they are. Raises an error if there are none, and says why.
 * @param {File} file @param {DOMStringMap} about
 */
export const partsOf = async (file, about) => {
  const tell = (/** @type {string[]} */ ...texts) => hint(texts.filter(Boolean).join(" ").replaceAll("{name}", () => file.name), undefined, 12);
  const { types, bytes, seconds: most } = limitsOf(about), stem = file.name.replace(/\.\w+$/, "");
  const wanted = { pictures: about.takes?.includes("image"), sound: about.takes?.includes("audio") };
  const isKind = types.includes(file.type.split(";")[0]);
  // A video that this browser cannot play has no length here: the server reads it.
  const fits = isKind && file.size <= bytes && (await withVideo(file, (_, seconds) => seconds).catch(() => 0)) <= most;
  if (fits) return tell(said.film_whole), [file];
  const megabytes = (bytes / 1e6).toFixed(0), minutes = Number.isFinite(most) ? `, ${most / 60} min` : "";
  const over = isKind ? said.film_over.replace("{most}", () => `${megabytes} MB${minutes}`) : "";
  let parts;
  try {
    parts = await withVideo(file, (video, seconds) => {
      if (seconds > MOST_SECONDS) throw new RangeError(file.name);
      return wanted.pictures ? picturesOf(video, seconds, stem) : [];
    });
    if (wanted.sound) parts = [...parts, ...(await soundOf(file, stem))];
  } catch (error) {
    tell(over, error instanceof RangeError ? said.film_long : said.film_unreadable);
    throw error;
  }
  if (!parts.length) {
    tell(over, said.film_empty);
    throw new Error(file.name);
  }
  const pictures = parts.filter(({ type }) => type.startsWith("image/")).length;
  const text = parts.length > pictures ? said.film_parts : wanted.sound ? said.film_pictures : said.film_deaf;
  tell(over, text.replace("{count}", `${pictures}`));
  return parts;
};
