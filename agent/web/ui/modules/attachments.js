// What comes into the composer beside typed text: files that are dropped anywhere on the page, long texts that are pasted,
// linked images after the visitor agrees, and camera shots. Only the server fetches links, and only those that the visitor
// agreed to.
import { upload } from "../composer/modules/files.js";
import { composer, fileOf } from "./composer.js";
import { write } from "./gradio.js";
import { inTurn, request } from "./network.js";
import { $, box, button, editor, hint, language, load, make, nameOf, root, said, when } from "./shared.js";

takeDrops();
offerLinks();
offerCamera();
offerVoice();
openFiles();

function pressable(text, then, name = "") {
  const made = button(name, text);
  made.addEventListener("click", then);
  return made;
}

function takeDrops() {
  // Drops. The window handles them before the browser, which would navigate to the dropped file or link.
  // It lies above an open dialog too, and takes the drop: an element that is redrawn then loses it.
  const overlay = make("div", { id: "drop", popover: "manual" }, said.drop);
  document.body.append(overlay);
  let hiding, ours = false;
  const hide = () => {
    clearTimeout(hiding);
    if (overlay.matches(":popover-open")) overlay.hidePopover();
  };
  const show = () => {
    if (!overlay.matches(":popover-open")) overlay.showPopover();
    clearTimeout(hiding);
    hiding = setTimeout(hide, 1000); // a continuing drag fires several times a second
  };
  const takesText = (target) => {
    const field = target.closest?.("textarea, input:not([type]), input:is([type=text], [type=password], [type=number])");
    return field && !field.readOnly && !field.disabled;
  };
  const brings = ({ dataTransfer }) => !ours && dataTransfer?.types.includes("Files");
  const over = (event) => {
    const files = brings(event);
    event.stopPropagation();
    if (!files && takesText(event.target)) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = files ? "copy" : "none";
    if (files) show();
  };
  const drop = (event) => {
    hide();
    const files = brings(event);
    event.stopPropagation();
    if (!files && takesText(event.target)) return;
    event.preventDefault();
    if (!files) return;
    const items = [...event.dataTransfer.items].filter((item) => item.kind === "file");
    const folders = new Set(items.flatMap((item, at) => (item.webkitGetAsEntry()?.isDirectory ? [at] : [])));
    const dropped = [...event.dataTransfer.files].filter((_, at) => !folders.has(at));
    const isReadOnly = () => box().readOnly;
    if (isReadOnly()) hint(said.drop_later, isReadOnly);
    else if (!editor.attach(dropped) || folders.size) hint(said.drop_folder);
  };
  for (const kind of ["dragenter", "dragover"]) window.addEventListener(kind, over, true);
  window.addEventListener("drop", drop, true);
  window.addEventListener("dragleave", (event) => event.relatedTarget ?? hide(), true);
  window.addEventListener("dragstart", () => (ours = true), true);
  window.addEventListener("dragend", () => (ours = false), true);
}

function offerLinks() {
  // Links. The map holds the state of each link in the box by its text. One link is fetched at a time.
  const links = new Map();
  let fetching; // the state of the link whose picture is being fetched
  let pasted = "", drawn = "";
  const kinds = "png|jpe?g|gif|webp|avif|hei[cf]";
  const inPath = new RegExp(`\\.(${kinds})(?![a-z0-9])`, "i");
  const inQuery = new RegExp(`\\.(${kinds})$`, "i");
  const asFormat = new RegExp(`^(${kinds})$`, "i");
  const picture = (text) => {
    if (!/^https?:\/\/\S+$/i.test(text) || !URL.canParse(text)) return;
    const url = new URL(text); // its host is as it will be requested: in Punycode, numbers as an address
    url.username = url.password = url.hash = "";
    const named = inPath.test(url.pathname) || [...url.searchParams].some(([name, value]) =>
      inQuery.test(value) || (/^(format|fm|ext)$/i.test(name) && asFormat.test(value)));
    return named ? url : undefined;
  };
  const set = (one, state, problem = "") => {
    one.leave?.abort(); // what is being fetched
    Object.assign(one, { state, problem });
    draw();
    next();
  };
  // Adds the fetched file to the composer, unless it is no longer wanted.
  const next = async () => {
    const [link, one] = [...links].find(([, each]) => each.state === "fetching") ?? [];
    if (fetching || !one) return;
    fetching = one;
    const { signal } = (one.leave = new AbortController());
    try {
      const found = await inTurn(false, () => request("/pictures", { method: "POST", body: { url: one.url.href }, signal }));
      if (!signal.aborted) {
        links.delete(link);
        composer.change(({ text, files }) => ({ text: without(text, link), files: [...files, fileOf(found)] }));
      }
    } catch ({ message }) {
      if (!signal.aborted) Object.assign(one, { state: "failed", problem: message });
    }
    fetching = one.leave = undefined;
    draw();
    next();
  };
  const without = (text, link) => {
    const at = text.indexOf(link);
    if (at < 0) return text;
    const before = text.slice(0, at), after = text.slice(at + link.length);
    return /(^|\s)$/.test(before) ? before + after.replace(/^[^\S\n]/, "") : before + after;
  };
  const look = () => {
    const text = box()?.value ?? "", all = new Set(text.split(/\s+/));
    const there = (link, one) => (one.pasted ? text.includes(link) : all.has(link));
    for (const [link, one] of links) {
      if (there(link, one)) continue;
      links.delete(link);
      set(one, "gone");
    }
    for (const link of [pasted, text.trim()]) {
      const url = picture(link), one = { url, state: "asking", pasted: link === pasted };
      if (url && there(link, one) && !links.has(link)) links.set(link, one);
    }
    pasted = "";
    draw();
  };
  const draw = () => {
    const shown = [...links.values()].filter((one) => ["asking", "fetching", "failed"].includes(one.state));
    const now = JSON.stringify(shown.map((one) => [one.url, one.state, one.problem]));
    if (now === drawn || !$("#links ul")) return;
    drawn = now;
    $("#links ul").replaceChildren(...shown.map(row));
  };
  const row = (one) => {
    const [before, after] = { asking: said.link_ask, fetching: said.link_fetching }[one.state]?.split("{host}") ?? [];
    const text = after === undefined ? [`${said.link_failed} ${one.problem}`] : [before, make("b", {}, one.url.host), after];
    const go = pressable(one.state === "failed" ? said.link_again : said.link_attach, () => {
      set(one, "fetching");
      box()?.focus();
    });
    const leave = pressable(said.link_leave, () => {
      set(one, "left");
      box()?.focus();
    });
    return make("li", { class: one.state === "failed" ? "refused" : one.state }, make("span", {}, ...text), ...(one.state === "fetching" ? [] : [go]), leave);
  };
  document.addEventListener("paste", (event) => {
    if (event.target !== box() || event.clipboardData?.files.length) return;
    pasted = event.clipboardData?.getData("text").trim() ?? "";
  }, true);
  document.addEventListener("input", (event) => event.target === box() && look());
  document.addEventListener("composer:changed", look);
  look();
}

function offerCamera() {
  // The camera: one dialog. The camera is on only while the dialog is open.
  const video = make("video", { "aria-label": said.camera_view, autoplay: true, muted: true, playsInline: true });
  const state = make("p", { role: "status" });
  const dialog = make("dialog", { id: "camera", "aria-labelledby": "camera-title" },
    make("h2", { id: "camera-title" }, said.camera), make("div", { class: "view" }, video, state));
  let stream, asked, facing = "environment";
  const dark = (one) => {
    for (const track of one?.getTracks() ?? []) track.stop();
  };
  const tell = (text, bad = false) => {
    state.textContent = text;
    state.classList.toggle("bad", bad);
    take.disabled = true;
  };
  const why = { NotAllowedError: said.camera_refused, SecurityError: said.camera_refused, NotFoundError: said.camera_none };
  const light = async () => {
    dark(stream);
    stream = video.srcObject = null;
    other.hidden = true;
    tell(said.camera_waiting);
    const now = (asked = {});
    const mine = () => dialog.open && asked === now;
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
  const take = pressable(said.camera, () => {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [video.videoWidth, video.videoHeight];
    canvas.getContext("2d").drawImage(video, 0, 0);
    canvas.toBlob((blob) => {
      dialog.close();
      if (!blob) return;
      const time = new Date().toTimeString().slice(0, 8).replaceAll(":", "");
      editor.attach([new File([blob], `camera-${time}.jpg`, { type: "image/jpeg" })]);
    }, "image/jpeg", 0.92);
  }, "take");
  const other = pressable(said.camera_other, () => {
    facing = facing === "environment" ? "user" : "environment";
    light();
  });
  dialog.append(make("div", { class: "actions" }, pressable(said.camera_cancel, () => dialog.close()), other, take));
  dialog.addEventListener("close", () => {
    dark(stream);
    stream = video.srcObject = null;
  });
  document.body.append(dialog);
  const opener = pressable("", () => {
    dialog.showModal();
    light();
  }, "camera-button");
  opener.title = said.camera;
  opener.setAttribute("aria-label", said.camera);
  // What the chosen model takes, or what can be extracted for it.
  const offer = () => {
    const { takes = "", accept = "" } = $("#about [data-takes]")?.dataset ?? {};
    editor.picker.accept = accept;
    editor.offerMicrophone(takes.includes("audio"));
    if (!takes.includes("image") || !navigator.mediaDevices?.getUserMedia) opener.remove();
    else if (!opener.isConnected) editor.place("camera", opener);
  };
  when("#about", (about) => {
    new MutationObserver(offer).observe(about, { childList: true, subtree: true, attributeFilter: ["data-takes"] });
    offer();
  });
}

// Dictation, and a button for a conversation without hands.
function offerVoice() {
  const use = (then) => load("voice").then(then, () => hint(said.chats_failed));
  document.addEventListener("composer:dictate", ({ detail: { file } }) => use((voice) => voice.dictate(file)));
  if (!navigator.mediaDevices?.getUserMedia || !window.AudioWorkletNode) return;
  const opener = pressable("", () => use((voice) => voice.converse()), "voice-button");
  opener.title = said.hands_free;
  opener.setAttribute("aria-label", said.hands_free);
  editor.place("voice", opener);
}

// Attached files: a long text that is pasted becomes one, and a click opens a picture, or a text to be edited.
function openFiles() {
  const LONGEST = 4000; // characters of a pasted text that stays in the box
  const LARGEST = 2_000_000; // bytes of a file that a text box can show

  let last = 0; // the number of the newest pasted text
  const nextName = () => {
    const names = editor.files.names();
    if (!names.length) last = 0;
    const name = `${said.pasted_text.replace("{number}", `${++last}`)}.txt`;
    return names.includes(name) ? nextName() : name;
  };
  window.addEventListener("paste", (event) => {
    const text = event.clipboardData?.getData("text") ?? "";
    if (event.target !== box() || text.length <= LONGEST) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    if (box().readOnly) return hint(said.chats_sending, () => box().readOnly);
    editor.attach([new File([text], nextName(), { type: "text/plain" })]);
  }, true);
  document.addEventListener("composer:open", async ({ detail: { file, item, isPicture } }) => {
    if (!isPicture) return box().readOnly || show(file);
    const viewer = await load("viewer").catch(() => hint(said.chats_failed));
    viewer?.pictures([...document.querySelectorAll("#composer .open-picture img")], $("img", item));
  });

  // The dialog
  const title = make("h2", { id: "text-file-title", dir: "auto" });
  const area = make("textarea", { "aria-labelledby": "text-file-title", dir: "auto", spellcheck: false });
  const state = make("p", { role: "status" });
  const cancel = button("cancel", said.camera_cancel), back = button("back", said.text_back), save = button("save", said.text_save);
  const dialog = make("dialog", { id: "text-file", "aria-labelledby": "text-file-title" },
    title, area, state, make("div", { class: "actions" }, cancel, back, save));
  document.body.append(dialog);
  let open; // the file that the dialog is about, and its text as it was attached

  const show = async (file) => {
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
    dialog.showModal();
    area.focus();
    area.setSelectionRange(0, 0);
    area.scrollTop = 0;
  };
  // Puts these files in the place of the one that is open.
  const replace = (...by) => composer.change(({ text, files }) => ({ text, files: files.flatMap((one) => (one.path === open.file.path ? by : [one])) }));
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
  // The file is attached as long as the new one is not there, so that a broken upload loses nothing.
  const store = async () => {
    if (area.value === open.text) return end();
    if (!area.value.trim()) return replace(), end();
    save.disabled = true;
    state.textContent = "";
    try {
      const name = nameOf(open.file);
      const [changed] = await upload(root, [new File([area.value], name, { type: open.file.mime_type || "text/plain" })], { language });
      replace(changed);
      end();
    } catch {
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
}
