// The attached files of a composer: one chip each, with the progress of its upload, its size, and buttons that open and remove it.
import { make } from "../../transcript/modules/elements.js";

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
export function attachments({ labels, language, root, largest, say, fire, left }) {
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
    const loaders = files.map(() => make("span", { className: "loader", role: "progressbar", "aria-label": labels.uploading, "aria-valuemin": "0", "aria-valuemax": "100" }));
    const fresh = files.map(({ name }, n) => {
      const chip = chipOf(name);
      chip.item.prepend(loaders[n], make("span", { className: "file-name", title: name, dir: "auto", "data-size": labels.uploading }, name));
      return chip;
    });
    const control = new AbortController(), isWanted = (/** @type {Chip} */ chip) => chips.includes(chip) || Boolean(chip.keeps);
    const told = (/** @type {number} */ done) => {
      for (const loader of loaders) {
        loader.dataset.done = `${done} %`;
        loader.style.setProperty("--done", `${done}%`);
        loader.setAttribute("aria-valuenow", done);
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

  return {
    list,
    attach,
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
    settled: async () => (await Promise.all(chips.map(({ file, stored }) => file || stored))).every(Boolean),
  };
}
