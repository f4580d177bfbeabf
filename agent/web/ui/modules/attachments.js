// The dialogs of attached files: a shot with the camera, and a text that is edited.
import { upload } from "../composer/composer.js";
import { composer } from "./composer.js";
import { write } from "./gradio.js";
import { box, button, editor, hint, language, make, nameOf, root, said } from "./shared.js";

const LARGEST = 2_000_000; // bytes of a file that a text box can show

// The camera is on only while its dialog is open.
const video = make("video", { "aria-label": said.camera_view, autoplay: true, muted: true, playsInline: true });
const told = make("p", { role: "status" });
const camera = make("dialog", { id: "camera", "aria-labelledby": "camera-title" },
  make("h2", { id: "camera-title" }, said.camera), make("div", { class: "view" }, video, told));
let stream, asked, facing = "environment";
const dark = (one) => {
  for (const track of one?.getTracks() ?? []) track.stop();
};
const tell = (text, bad = false) => {
  told.textContent = text;
  told.classList.toggle("bad", bad);
  take.disabled = true;
};
const why = { NotAllowedError: said.camera_refused, SecurityError: said.camera_refused, NotFoundError: said.camera_none };
const light = async () => {
  dark(stream);
  stream = video.srcObject = null;
  other.hidden = true;
  tell(said.camera_waiting);
  const now = (asked = {});
  const mine = () => camera.open && asked === now;
  let got;
  try {
    const ideal = { facingMode: facing, width: { ideal: 1920 }, height: { ideal: 1080 } };
    got = await navigator.mediaDevices.getUserMedia({ video: ideal });
    if (!mine()) return dark(got); // closed while the browser asked for permission
    stream = video.srcObject = got;
    got.getVideoTracks()[0].addEventListener("ended", () => mine() && tell(said.camera_trouble, true));
    await video.play();
    const all = await navigator.mediaDevices.enumerateDevices();
    if (!mine()) return;
    tell("");
    take.disabled = false;
    other.hidden = !matchMedia("(pointer: coarse)").matches || all.filter((one) => one.kind === "videoinput").length < 2;
    take.focus();
  } catch (error) {
    if (!mine()) return dark(got);
    dark(got);
    tell(why[error.name] ?? said.camera_trouble, true);
  }
};
const take = button("take", said.camera, () => {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [video.videoWidth, video.videoHeight];
  canvas.getContext("2d").drawImage(video, 0, 0);
  canvas.toBlob((blob) => {
    camera.close();
    if (!blob) return;
    const time = new Date().toTimeString().slice(0, 8).replaceAll(":", "");
    editor.attach([new File([blob], `camera-${time}.jpg`, { type: "image/jpeg" })]);
  }, "image/jpeg", 0.92);
});
const other = button("", said.camera_other, () => {
  facing = facing === "environment" ? "user" : "environment";
  light();
});
camera.append(make("div", { class: "actions" }, button("", said.camera_cancel, () => camera.close()), other, take));
camera.addEventListener("close", () => {
  dark(stream);
  stream = video.srcObject = null;
});
document.body.append(camera);
/** Open the camera. */
export const openCamera = () => {
  camera.showModal();
  light();
};

// The text of a file
const title = make("h2", { id: "text-file-title", dir: "auto" });
const area = make("textarea", { "aria-labelledby": "text-file-title", dir: "auto", spellcheck: false });
const state = make("p", { role: "status" });
const cancel = button("cancel", said.camera_cancel), back = button("back", said.text_back), save = button("save", said.text_save);
const dialog = make("dialog", { id: "text-file", "aria-labelledby": "text-file-title" },
  title, area, state, make("div", { class: "actions" }, cancel, back, save));
document.body.append(dialog);
let open; // the file that the dialog is about, and its text as it was attached

/** Open a text to be edited. */
export const openText = async (file) => {
  try {
    if (file.size > LARGEST) throw new Error("too large for a text box");
    const answer = await fetch(file.url);
    if (!answer.ok) throw new Error(answer.statusText);
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await answer.arrayBuffer());
    open = { file, text };
  } catch {
    return hint(said.text_unreadable.replace("{name}", () => nameOf(file)));
  }
  title.textContent = nameOf(file);
  area.value = open.text;
  state.textContent = "";
  save.disabled = false;
  dialog.showModal();
  area.focus();
  area.setSelectionRange(0, 0);
  area.scrollTop = 0;
};
// Puts these files in the place of the one that is open, or after all if another chat has the composer by now.
const replace = (...by) => composer.change(({ text, files }) => {
  const at = files.findIndex(({ path }) => path === open.file.path);
  return { text, files: at < 0 ? [...files, ...by] : files.toSpliced(at, 1, ...by) };
});
const end = () => {
  dialog.close();
  box().focus();
};
cancel.addEventListener("click", () => dialog.close());
back.addEventListener("click", () => {
  const text = box().value.trimEnd();
  write(box(), text ? `${text}\n\n${area.value}` : area.value);
  replace();
  end();
});
// The file is attached as long as the new one is not there, so that a broken upload loses nothing. One that was cancelled
// meanwhile changes nothing.
const store = async () => {
  const mine = open, text = area.value, isLeft = () => open !== mine || !dialog.open;
  if (text === open.text) return end();
  if (!text.trim()) return replace(), end();
  save.disabled = true;
  state.textContent = "";
  try {
    const name = nameOf(open.file);
    const [changed] = await upload(root, [new File([text], name, { type: open.file.mime_type || "text/plain" })], { language });
    if (isLeft()) return;
    replace(changed);
    if (area.value === text) return end();
    open = { file: changed, text }; // more was written meanwhile
  } catch {
    if (isLeft()) return;
    state.textContent = said.text_unsaved;
    area.focus();
  }
  save.disabled = false;
};
save.addEventListener("click", store);
area.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || save.disabled) return;
  event.preventDefault();
  store();
});
