// Draws on a picture before it is sent: a pen, boxes and words, in one of four colours, each of which can be undone. Loaded
// when the viewer's button for it is pressed first.
import { $, hint, make, said } from "./shared.js";

/** @typedef {{tool: string, colour: string, points: [number, number][], words?: string}} Mark In pixels of the picture. */
const TOOLS = ["pen", "box", "words"], COLOURS = ["#e5322d", "#1677ff", "#14a44d", "#ffd400"];
const LARGEST = 2048; // pixels of the longer side: models get no larger pictures

const button = (name, act) => {
  const label = said[`annotate_${name}`];
  const made = make("button", { type: "button", class: name, title: label, "aria-label": label });
  made.addEventListener("click", act);
  return made;
};
const canvas = make("canvas", { tabindex: "0", role: "img" });
const pen = canvas.getContext("2d");
const field = make("input", { type: "text", maxlength: "200", "aria-label": said.annotate_words, hidden: true });
const stage = make("div", { class: "stage" }, canvas, field);
const choices = (/** @type {string} */ name, /** @type {string[]} */ values) => make("div", { class: `${name}s`, role: "radiogroup", "aria-label": said[`annotate_${name}`] },
  ...values.map((value, n) => {
    const label = name === "tool" ? said[`annotate_${value}`] : said.annotate_colours.split(/[,，]\s*/)[n];
    const choice = make("input", { type: "radio", name: `annotate-${name}`, value, checked: !n, "aria-label": label });
    const made = make("label", { class: value, title: label }, choice);
    if (name === "colour") made.style.setProperty("--colour", value);
    return made;
  }));
const tools = choices("tool", TOOLS), colours = choices("colour", COLOURS);
const undo = button("undo", () => (marks.pop(), draw()));
const done = make("button", { type: "button", class: "done" }, said.annotate_done);
const dialog = make("dialog", { id: "annotate", "aria-label": said.annotate },
  make("div", { class: "bar" }, tools, colours, undo, button("cancel", () => dialog.close()), done), stage);
const chosen = (/** @type {HTMLElement} */ group) => $("input:checked", group).value;

let marks = /** @type {Mark[]} */ ([]), picture = /** @type {any} */ (undefined), name = "", then, mark;
let at = /** @type {[number, number]} */ ([0, 0]); // where the words are
const unit = () => Math.max(canvas.width, canvas.height) / 200;

/** Draw a mark with a light edge, so that it shows on every picture. @param {Mark} mark */
const paint = ({ tool, colour, points, words }) => {
  const [first, last = first] = [points[0], points.at(-1)];
  for (const [style, width] of /** @type {[string, number][]} */ ([["#fff", 2.2], [colour, 1.2]])) {
    Object.assign(pen, { strokeStyle: style, fillStyle: style, lineWidth: width * unit(), lineCap: "round", lineJoin: "round" });
    pen.beginPath();
    if (tool === "box") pen.strokeRect(first[0], first[1], last[0] - first[0], last[1] - first[1]);
    else if (tool === "pen") {
      for (const point of [...points, last]) pen.lineTo(...point);
      pen.stroke();
    } else {
      Object.assign(pen, { font: `600 ${8 * unit()}px system-ui, sans-serif`, textBaseline: "middle" });
      style === "#fff" ? pen.strokeText(words ?? "", ...first) : pen.fillText(words ?? "", ...first);
    }
  }
};
const draw = () => {
  if (!picture) return; // the dialog is closed
  pen.drawImage(picture, 0, 0, canvas.width, canvas.height);
  for (const one of marks) paint(one);
  undo.disabled = !marks.length;
};
const pointOf = ({ clientX, clientY }) => {
  const room = canvas.getBoundingClientRect();
  return /** @type {[number, number]} */ ([(clientX - room.left) * canvas.width / room.width, (clientY - room.top) * canvas.height / room.height]);
};

// Words are typed where the picture was pressed, or in its middle.
const write = (point) => {
  const inside = canvas.getBoundingClientRect(), outside = stage.getBoundingClientRect();
  at = point;
  field.value = "";
  field.hidden = false;
  field.style.left = `${inside.left - outside.left + at[0] * inside.width / canvas.width}px`;
  field.style.top = `${inside.top - outside.top + at[1] * inside.height / canvas.height}px`;
  field.focus();
};
const written = () => {
  if (field.hidden) return;
  field.hidden = true;
  if (field.value.trim()) marks.push({ tool: "words", colour: chosen(colours), points: [at], words: field.value.trim() });
  draw();
};
field.addEventListener("blur", written);
field.addEventListener("keydown", (event) => {
  if (event.isComposing || !["Enter", "Escape"].includes(event.key)) return;
  event.preventDefault();
  event.stopPropagation();
  if (event.key === "Escape") field.value = "";
  canvas.focus(); // its blur takes the words
});
canvas.addEventListener("keydown", (event) => {
  if (event.key === "Enter") event.preventDefault(), write([canvas.width / 2, canvas.height / 2]);
});
dialog.addEventListener("keydown", (event) => {
  if (event.key !== "z" || !(event.ctrlKey || event.metaKey) || event.target === field) return;
  event.preventDefault();
  undo.click();
});

canvas.addEventListener("pointerdown", (event) => {
  if (event.button) return;
  event.preventDefault(); // the focus stays, for the words
  if (!field.hidden) return written();
  const point = pointOf(event), tool = chosen(tools);
  if (tool === "words") return write(point);
  marks.push((mark = { tool, colour: chosen(colours), points: [point] }));
  canvas.setPointerCapture(event.pointerId);
  draw();
});
canvas.addEventListener("pointermove", (event) => {
  if (!mark) return;
  mark.points = mark.tool === "box" ? [mark.points[0], pointOf(event)] : [...mark.points, ...(event.getCoalescedEvents?.() ?? [event]).map(pointOf)];
  draw();
});
for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => {
  if (mark?.tool === "box" && mark.points.length < 2) marks.pop(); // a tap is no box
  mark = undefined;
  draw();
});

done.addEventListener("click", () => {
  written();
  done.disabled = true;
  const isDrawn = /\.(png|svg|gif|webp)$/i.test(name), type = isDrawn ? "image/png" : "image/jpeg";
  canvas.toBlob((blob) => {
    done.disabled = false;
    if (!blob) return hint(said.chats_failed);
    const stem = name.replace(/\.\w+$/, "").replace(/-marked$/, "");
    dialog.close();
    then(new File([blob], `${stem}-marked.${isDrawn ? "png" : "jpg"}`, { type }));
  }, type, 0.92);
});
dialog.addEventListener("close", () => {
  dialog.remove();
  field.hidden = true;
  marks = [];
  picture = mark = undefined;
});

/**
 * Let the visitor draw on a picture.
 * @param {HTMLImageElement} image a loaded one of this page's own
 * @param {string} called the name of its file
 * @param {(file: File) => void} taken gets the new picture
 */
export const annotate = (image, called, taken) => {
  [picture, name, then] = [image.cloneNode(), called, taken];
  const by = Math.min(1, LARGEST / Math.max(image.naturalWidth, image.naturalHeight));
  [canvas.width, canvas.height] = [Math.round(image.naturalWidth * by), Math.round(image.naturalHeight * by)];
  canvas.setAttribute("aria-label", `${called}: ${said.annotate_how}`);
  document.body.append(dialog);
  dialog.showModal();
  picture.decode().then(draw, () => (dialog.close(), hint(said.chats_failed)));
  $("input:checked", tools).focus();
};
