// Stands in for Gradio's sanitizer of HTML, through which all Markdown goes before it is in the page, and looks at its result.
//
// A picture would be requested with the visitor's cookie. So only the pictures of the chat's own files and those that are
// in the text stay. Another one becomes a link, if it is elsewhere on the web, or its text.
import { n as sanitized } from "./{name}?whole";

const MEDIA = new URL("../media/", import.meta.url);
const INSIDE = /^data:image\/(?:png|jpeg|webp|gif|avif);base64,[\w+/=\s]*$/i;
// How the server writes the files of a chat (agent/web/ui/file_markdown.py). No model's text is written so (render.py).
const WRITTEN = /^(?:!?\[[^\n]*\]\(|<audio controls preload="metadata" src=")media\/([\w.-]+)(?:\?name=[^\s()"]*)?(?:\)|"><\/audio>)$/;
const FETCHED = ["srcset", "poster", "background", "data", "lowsrc", "dynsrc", "ping", "action", "formaction"];
const DRAWN = "image, use, feImage, mpath, textPath, tref, pattern, linearGradient, radialGradient, filter, script, set, animate";

const files = () => {
  const live = window.live ?? { messages: [], shown: [] };
  const parts = [live.messages, ...live.shown].flat().flatMap(({ content }) => content);
  return new Set(parts.map(({ text }) => WRITTEN.exec(text ?? "")?.[1]));
};
const resolved = (url) => {
  try {
    return new URL(url, document.baseURI);
  } catch {
    return undefined;
  }
};
const isFile = (url) => {
  const { origin, pathname, searchParams } = resolved(url) ?? {};
  const id = pathname?.startsWith(MEDIA.pathname) ? pathname.slice(MEDIA.pathname.length) : "";
  return origin === MEDIA.origin && id !== "" && [...searchParams.keys()].every((key) => key === "name") && files().has(id);
};
// What was written, of signs that the server has escaped (formulas.py).
const unescaped = (text) => text.replace(/&#x0000([\da-f]{2});/g, (_, code) => String.fromCharCode(parseInt(code, 16)));
const ENTITIES = { "&lt;": "<", "&gt;": ">", "&amp;": "&", "&nbsp;": " " };

const replaced = (picture) => {
  const url = picture.getAttribute("src") ?? "", away = resolved(url), name = picture.alt || (url && "…");
  const isElsewhere = ["http:", "https:"].includes(away?.protocol) && away.origin !== location.origin;
  if (!isElsewhere || picture.closest("a, button")) return picture.replaceWith(name);
  const link = Object.assign(document.createElement("a"), { href: away.href, target: "_blank", rel: "noopener noreferrer" });
  link.textContent = picture.alt || away.href;
  picture.replaceWith(link);
};
const checked = (fragment) => {
  for (const diagram of fragment.querySelectorAll(".mermaid")) {
    diagram.textContent = diagram.innerHTML.replace(/&(?:lt|gt|amp|nbsp);/g, (entity) => ENTITIES[entity]);
  }
  for (const code of fragment.querySelectorAll("pre code")) {
    if (!code.textContent.includes("&#x0000")) continue;
    const texts = document.createTreeWalker(code, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) texts.currentNode.data = unescaped(texts.currentNode.data);
  }
  for (const one of fragment.querySelectorAll("*")) {
    const isDrawing = one.namespaceURI !== "http://www.w3.org/1999/xhtml";
    const isPicture = one.localName === "img" && !isDrawing;
    const url = one.getAttribute("src");
    if (isPicture && !INSIDE.test(url ?? "") && !isFile(url ?? "")) {
      replaced(one);
      continue;
    }
    if (url !== null && !isPicture && !isFile(url)) one.removeAttribute("src");
    for (const { name, value } of [...one.attributes]) {
      const isStyle = name === "style" || (isDrawing && !/^(?:d|points|transform|viewBox|id|class|href)$/.test(name));
      const loads = isStyle && /[\\@]|(?:url|src|image|image-set|element|cross-fade|paint)\s*\(/i.test(value);
      const names = isDrawing && name.endsWith("href") && one.matches(DRAWN) && !value.startsWith("#");
      if (FETCHED.includes(name) || loads || names) one.removeAttribute(name);
    }
  }
  return fragment;
};

export const n = (html) => checked(sanitized(html));
export const t = (html) => {
  const holder = document.createElement("template");
  holder.content.append(n(html));
  return holder.innerHTML;
};
