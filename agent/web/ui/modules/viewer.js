// Shows a picture of the chat in a dialog: whole or larger, moved by dragging, the next and the previous one, and buttons
// that save it, attach it to the next message, or draw on it. It also shows a cited passage: on a picture of a page, or in the text of a document. Loaded when the
// first picture or passage is opened.
import { save as saveAs } from "../transcript/blocks.js";
import { $, editor, hint, language, load, make, said } from "./shared.js";

const MOST = 8, STEP = 1.25;
const button = (name, act) => {
  const label = said[`viewer_${name}`] ?? said[name];
  const made = make("button", { type: "button", class: name, title: label, "aria-label": label });
  made.addEventListener("click", act);
  return made;
};
const image = make("img", { draggable: false });
const stage = make("div", { class: "stage" }, image);
const note = make("p", { class: "note", role: "status" });
const text = make("div", { class: "text", tabindex: "0", role: "region", dir: "auto" });
const count = make("span", { class: "count", role: "status" }), scale = make("span", { class: "scale", role: "status" });
let replaced; // takes the picture of an address out of the composer
let all = [], at = 0, opener, zoom = 1, x = 0, y = 0;

// `zoom` 1 is the whole picture in the room there is. A small picture is not enlarged by that.
const fitted = () => Math.min(1, stage.clientWidth / (image.naturalWidth || 1), stage.clientHeight / (image.naturalHeight || 1));
const actual = () => 1 / fitted();
const draw = () => {
  const size = fitted() * zoom, width = image.naturalWidth * size, height = image.naturalHeight * size;
  const far = (whole, room) => Math.max(0, (whole - room) / 2);
  x = Math.max(-far(width, stage.clientWidth), Math.min(far(width, stage.clientWidth), x));
  y = Math.max(-far(height, stage.clientHeight), Math.min(far(height, stage.clientHeight), y));
  image.style.width = `${width}px`;
  image.style.height = `${height}px`;
  image.style.translate = `${x}px ${y}px`;
  stage.classList.toggle("movable", far(width, stage.clientWidth) + far(height, stage.clientHeight) > 0);
  scale.textContent = image.naturalWidth ? size.toLocaleString(language, { style: "percent" }) : "";
};
// Keeps the point at (`left`, `top`), measured from the middle of the stage, where it is.
const zoomTo = (wanted, left = 0, top = 0) => {
  const next = Math.max(1, Math.min(MOST * actual(), wanted)), by = next / zoom;
  [x, y, zoom] = [left - (left - x) * by, top - (top - y) * by, next];
  draw();
};
const whole = () => zoomTo(1);
const larger = () => zoomTo(zoom * STEP), smaller = () => zoomTo(zoom / STEP);
const full = () => zoomTo(actual());
const from = ({ clientX, clientY }) => {
  const room = stage.getBoundingClientRect();
  return [clientX - room.left - room.width / 2, clientY - room.top - room.height / 2];
};

const ENDS = { "image/jpeg": "jpg", "image/svg+xml": "svg" };
const nameOf = (end) => {
  const name = all[at].fileName ?? all[at].closest?.(".open-picture")?.textContent ?? new URL(image.src).searchParams.get("name") ?? `${said.viewer_name}-${at + 1}`;
  return /\.\w+$/.test(name) ? name : `${name}.${end}`;
};
const fetched = async () => {
  const answer = await fetch(image.src).catch(() => undefined);
  if (!answer?.ok) return hint(said.chats_failed);
  const blob = await answer.blob();
  return new File([blob], nameOf(ENDS[blob.type] ?? blob.type.split("/").at(-1)), { type: blob.type });
};
const save = async () => {
  const file = await fetched();
  if (file) saveAs(file.name, file);
};
// The picture is attached to the next message, as it is or drawn on. One that is attached already is replaced.
const attach = (file) => {
  dialog.close();
  editor.attach([file]);
};
const use = async () => {
  const file = await fetched();
  if (file) attach(file);
};
const annotate = async () => {
  const pen = await load("annotate").catch(() => hint(said.chats_failed));
  if (!pen || !image.naturalWidth) return;
  const { src } = image;
  pen.annotate(image, nameOf("png"), (file) => {
    attach(file);
    const remove = replaced;
    if (remove) editor.files.settled().then((isStored) => isStored && remove(src));
  });
};
const useButton = button("use", use);
const previous = button("previous", () => go(-1)), next = button("next", () => go(1));
const dialog = make("dialog", { id: "viewer" },
  make("div", { class: "bar" }, count, scale, button("smaller", smaller), button("larger", larger), button("whole", whole),
    button("full", full), button("draw", annotate), useButton, button("save", save), button("close", () => dialog.close())),
  note, stage, text, previous, next);
const show = (index) => {
  at = index;
  zoom = 1;
  x = y = tapped = 0; // a tap on the picture before is not the first of two
  image.alt = all[at].alt || said.viewer;
  image.src = all[at].currentSrc || all[at].src;
  const several = all.length > 1;
  if (several) count.textContent = said.viewer_count.replace("{number}", at + 1).replace("{count}", all.length);
  previous.hidden = next.hidden = !several;
  draw();
};
const go = (by) => all.length > 1 && show((at + by + all.length) % all.length);
image.addEventListener("load", draw);
new ResizeObserver(() => dialog.open && draw()).observe(stage);

const KEYS = { ArrowLeft: () => go(-1), ArrowRight: () => go(1), "+": larger, "=": larger, "-": smaller, 0: whole, 1: full };
dialog.addEventListener("keydown", (event) => {
  const act = event.ctrlKey || event.metaKey || event.altKey || stage.hidden ? undefined : KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});
stage.addEventListener("wheel", (event) => {
  event.preventDefault(); // also a pinch on a touchpad, which would enlarge the page
  zoomTo(zoom * Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015)), ...from(event));
}, { passive: false });

// One pointer moves the picture, two enlarge it. A click beside the picture closes the dialog.
const held = new Map();
let moved = false, tapped = 0, pressed;
const middle = () => {
  const [one, other = one] = [...held.values()];
  return { clientX: (one.clientX + other.clientX) / 2, clientY: (one.clientY + other.clientY) / 2 };
};
const spread = () => {
  const [one, other] = [...held.values()];
  return other ? Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY) : 0;
};
stage.addEventListener("pointerdown", (event) => {
  if (event.button) return;
  moved = held.size > 0;
  if (!held.size) pressed = event;
  held.set(event.pointerId, event);
  stage.setPointerCapture(event.pointerId);
});
stage.addEventListener("pointermove", (event) => {
  if (!held.has(event.pointerId)) return;
  const before = middle(), wide = spread();
  held.set(event.pointerId, event);
  const after = middle(), by = wide ? spread() / wide : 1;
  moved ||= Math.hypot(event.clientX - pressed.clientX, event.clientY - pressed.clientY) > 4;
  x += after.clientX - before.clientX;
  y += after.clientY - before.clientY;
  zoomTo(zoom * by, ...from(after));
});
const release = (event) => {
  if (!held.delete(event.pointerId) || held.size || moved || event.type !== "pointerup") return;
  const room = image.getBoundingClientRect();
  const inside = event.clientX >= room.left && event.clientX <= room.right && event.clientY >= room.top && event.clientY <= room.bottom;
  if (!inside) return dialog.close();
  if (event.timeStamp - tapped < 400) zoomTo(zoom > 1 ? 1 : Math.max(actual(), 2), ...from(event));
  tapped = event.timeStamp;
};
for (const end of ["pointerup", "pointercancel"]) stage.addEventListener(end, release);

dialog.addEventListener("close", () => {
  held.clear();
  dialog.remove();
  image.removeAttribute("src");
  (opener?.isConnected ? opener : $("#composer textarea"))?.focus({ preventScroll: true });
});
const open = (name, title = "") => {
  dialog.setAttribute("aria-label", name);
  count.textContent = title;
  note.textContent = "";
  note.hidden = true;
  document.body.append(dialog);
  dialog.showModal();
};
const setText = (isText) => {
  dialog.classList.toggle("of-text", isText);
  stage.hidden = isText;
  text.hidden = !isText;
};
/** `replace` is given for the pictures of the composer: it takes one out. */
export const pictures = (pictures, picture, replace = undefined) => {
  [all, opener, replaced] = [pictures, picture, replace];
  useButton.hidden = Boolean(replace);
  setText(false);
  open(said.viewer);
  show(all.indexOf(picture));
};
// Shows what the server has found of a passage: see `CitedPassages`.
export const passage = ({ document: name, page, count: most, is_found: isFound, picture, text: found }, from) => {
  const values = { name, number: page.toLocaleString(language), count: most.toLocaleString(language) };
  const title = picture ? said.passage_page.replace(/\{(\w+)\}/g, (_, key) => values[key]) : name;
  [all, opener, replaced] = [[], from, undefined];
  useButton.hidden = false;
  setText(!picture);
  text.setAttribute("aria-label", title);
  text.replaceChildren();
  open(title, title);
  if (picture) {
    const file = `${name.replace(/\.\w+$/, "")}-${page}.png`;
    all = [{ src: `data:image/png;base64,${picture}`, alt: title, fileName: file }];
    show(0);
  } else {
    previous.hidden = next.hidden = true;
    const mark = make("mark", {}, found[1]);
    text.append(found[0], ...(isFound ? [mark] : []), found[2]);
    text.focus();
    if (isFound) mark.scrollIntoView({ block: "center" });
  }
  note.hidden = isFound;
  if (!isFound) note.textContent = said.passage_gone;
};
