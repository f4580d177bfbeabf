// Draws a question and its answer as a picture, which can be copied or saved: text, lists, tables, code, and pictures of the
// chat, in the colours and fonts of the page. A browser taints a canvas that has drawn HTML, so each block is laid out here.
import { save } from "../transcript/blocks.js";
import { $, button, hint, language, make, said } from "./shared.js";

// Pixels of the page. The canvas has twice as many each way, and Safari draws none with more than 16.7 million.
const WIDTH = 720, EDGE = 36, SCALE = 2, MOST = 5000, FADE = 120, PICTURE = 640, PAD = 12, INDENT = 28;
const SKIPPED = "button, summary, .tools, [data-own], .caption, footer, iframe, svg, audio, video, .note, script, style";
const BLOCKS = "p, h1, h2, h3, h4, h5, h6, ul, ol, li, pre, table, blockquote, hr, div, section, dl, dt, dd, figure, img, details, math[display=block]";
const WORDS = /\n|[^\S\n]+|[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef]|[^\s\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef]+/g;
const OPENS = /^[\u300c\u300e\uff08\u300a]/; // the other signs of these scripts may not begin a line
const RIGHT = /[\u0590-\u08ff\ufb1d-\ufefc]/; // letters of Hebrew, Arabic and their neighbours
const CLEAR = "rgba(0, 0, 0, 0)";
const pen = make("canvas").getContext("2d");
/**
 * What is drawn so far, from the top to the bottom: `y` is where the next block begins, and `style` that of the turn.
 * @typedef {{y: number, drawn: ((context: CanvasRenderingContext2D) => void)[], style: CSSStyleDeclaration}} Sheet
 * @typedef {{text: string, font: string, colour: string, size: number, keeps: boolean, up: number, ground: string, rule: number | undefined}} Piece
 */

const px = (value) => parseFloat(value) || 0;
const heightOf = (style) => px(style.lineHeight) || px(style.fontSize) * 1.5;
const fontOf = (style) => `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
const isHidden = (element) => element.matches(SKIPPED) || getComputedStyle(element).display === "none";
const widthOf = (text, font) => {
  pen.font = font;
  return pen.measureText(text).width;
};
const sum = (numbers) => numbers.reduce((all, one) => all + one, 0);
const lineWidth = (line) => sum(line.map(({ width }) => width));
/** @param {Sheet} sheet */
const box = (sheet, { x, y, width, height, fill, stroke = "", round = 8, at = sheet.drawn.length }) => sheet.drawn.splice(at, 0, (context) => {
  context.beginPath();
  context.roundRect(x, y, width, height, round);
  context.fillStyle = fill;
  context.fill();
  context.strokeStyle = stroke || CLEAR;
  context.stroke();
});

/** The pieces of a text: those of one element look the same. Code has a ground, and a formula is its source. @param {Node} node @param {Piece[]} found */
const pieces = (node, found = []) => {
  const element = /** @type {HTMLElement} */ (node instanceof Element ? node : node.parentElement);
  if (node instanceof Element && isHidden(node)) return found;
  const style = getComputedStyle(element), size = px(style.fontSize), keeps = /^(pre|break)/.test(style.whiteSpace);
  const code = element.closest("code, kbd"), link = element.closest("a[href]");
  const rule = element.closest("del, s") ? 0 : link && !link.closest(".mark") ? size * 0.5 : undefined;
  const ground = code && !code.closest("pre") ? getComputedStyle(code).backgroundColor : CLEAR;
  const like = { font: fontOf(style), colour: style.color, size, keeps, up: element.closest("sup") ? size * 0.45 : 0, ground, rule };
  const add = (text, more = {}) => text && found.push({ ...like, text, ...more });
  if (node instanceof Text) add(keeps ? node.data.replaceAll("\t", "    ") : node.data.replace(/\s+/g, " "));
  else if (element.matches("br")) add("\n", { keeps: true });
  else if (element.matches("math")) add(element.getAttribute("alttext") ?? element.textContent, { font: `italic ${style.fontSize} serif` });
  else if (element instanceof HTMLImageElement) add(element.alt);
  else if (element instanceof HTMLInputElement) add(element.checked ? "☑ " : "☐ ");
  else for (const child of node.childNodes) if (child instanceof Text || child instanceof Element) pieces(child, found);
  return found;
};
/** The lines of these pieces. A word that is wider than a line is cut. @param {Piece[]} all @param {number} most */
const linesOf = (all, most) => {
  const lines = /** @type {{piece: Piece, text: string, width: number}[][]} */ ([[]]);
  let left = most;
  const put = (piece, text, width) => {
    const line = lines[lines.length - 1], last = line.at(-1);
    if (last?.piece === piece) [last.text, last.width] = [last.text + text, last.width + width];
    else line.push({ piece, text, width });
    left -= width;
  };
  const next = () => (lines.push([]), (left = most));
  const hasText = () => lines[lines.length - 1].length > 0;
  for (const piece of all) for (const word of piece.text.match(WORDS) ?? []) {
    if (lines.length > MOST / 10) return lines;
    const isSpace = !word.trim(), isSign = /^\p{P}/u.test(word) && !OPENS.test(word);
    if (word === "\n" && piece.keeps) next();
    else if (!isSpace || piece.keeps || hasText()) {
      let rest = word, width = widthOf(rest, piece.font);
      if (width > left && !isSpace && !(isSign && word.length === 1) && hasText() && width <= most) next();
      while (width > left && !isSpace && rest.length > 1 && lines.length <= MOST / 10) {
        let count = Math.max(1, Math.floor((rest.length * left) / width));
        while (count > 1 && widthOf(rest.slice(0, count), piece.font) > left) count--;
        put(piece, rest.slice(0, count), widthOf(rest.slice(0, count), piece.font));
        next();
        rest = rest.slice(count);
        width = widthOf(rest, piece.font);
      }
      if (rest) put(piece, rest, width);
    }
  }
  return lines;
};
/** Draws lines. Returns their height. @param {Sheet} sheet */
const drawLines = (sheet, lines, { x, y, width, style }) => {
  const height = heightOf(style), { direction, unicodeBidi, textAlign: align } = style;
  lines.forEach((line, number) => {
    const first = unicodeBidi === "plaintext" && /\p{L}/u.exec(line.map(({ text }) => text).join(""))?.[0];
    const isRight = first ? RIGHT.test(first) : direction === "rtl";
    const share = align === "center" ? 0.5 : align === "right" || align === "end" || (isRight && align !== "left") ? 1 : 0;
    let at = x + Math.max(0, width - lineWidth(line)) * share;
    const base = y + (number + 0.5) * height;
    for (const { piece, text, width: wide } of isRight ? [...line].reverse() : line) {
      const left = at;
      if (piece.ground !== CLEAR) box(sheet, { x: left - 2, y: base - height * 0.42, width: wide + 4, height: height * 0.84, fill: piece.ground, round: 5 });
      sheet.drawn.push((context) => {
        Object.assign(context, { font: piece.font, fillStyle: piece.colour, direction: isRight ? "rtl" : "ltr" });
        context.fillText(text, left, base - piece.up);
        if (piece.rule !== undefined) context.fillRect(left, base + piece.rule, wide, 1);
      });
      at += wide;
    }
  });
  return lines.length * height;
};
const paragraph = (sheet, nodes, x, width, element) => {
  const style = getComputedStyle(element), lines = linesOf(nodes.flatMap((node) => pieces(node)), width);
  sheet.y += drawLines(sheet, lines, { x, y: sheet.y, width, style });
};

// The blocks. Each draws itself at `x`, and moves the sheet on.
const code = (sheet, element, x, width) => {
  const style = getComputedStyle(element), text = element.querySelector("code") ?? element, all = pieces(text), last = all.at(-1);
  if (last) last.text = last.text.replace(/\n$/, "");
  const title = element.dataset.language ?? "", top = sheet.y, head = title ? 28 : 10, at = sheet.drawn.length;
  const lines = linesOf(all, width - 2 * PAD), inner = getComputedStyle(text);
  sheet.y += head + 10 + drawLines(sheet, lines, { x: x + PAD, y: top + head, width: width - 2 * PAD, style: inner });
  box(sheet, { x, y: top, width, height: sheet.y - top, fill: style.backgroundColor, stroke: style.borderTopColor, round: 10, at });
  note(sheet, title, x + PAD, top + 16, 12);
};
const note = (sheet, text, x, y, size) => sheet.drawn.push((context) => {
  Object.assign(context, { font: `500 ${size}px ${sheet.style.fontFamily}`, fillStyle: sheet.style.color, globalAlpha: 0.68, direction: "ltr" });
  context.fillText(text, x, y);
  context.globalAlpha = 1;
});
// Narrow columns keep their width, and the others share what is left.
const table = (sheet, element, x, width) => {
  const rows = [...element.rows].map((row) => [...row.cells].map((cell) => ({ style: getComputedStyle(cell), text: pieces(cell) })));
  const wide = /** @type {number[]} */ ([]);
  for (const row of rows) row.forEach(({ text }, at) => (wide[at] = Math.max(wide[at] ?? 40, 2 * PAD + Math.max(...linesOf(text, Infinity).map(lineWidth)))));
  const fair = width / wide.length, narrow = sum(wide.filter((one) => one <= fair)), broad = sum(wide) - narrow;
  const widths = sum(wide) <= width ? wide : wide.map((one) => (one <= fair ? one : ((width - narrow) * one) / broad));
  for (const row of rows) {
    let left = x, height = 0;
    for (const [at, { style, text }] of row.entries()) {
      const room = widths[at] - 2 * PAD;
      height = Math.max(height, 12 + drawLines(sheet, linesOf(text, room + 1), { x: left + PAD, y: sheet.y + 6, width: room, style }));
      left += widths[at];
    }
    sheet.y += height;
    if (row !== rows.at(-1)) box(sheet, { x, y: sheet.y - 1, width: left - x, height: 1, fill: row[0]?.style.borderBottomColor, round: 0 });
  }
};
const picture = (sheet, image, x, width) => {
  const isOurs = new URL(image.currentSrc || image.src, location.href).origin === location.origin || /^(data|blob):/.test(image.src);
  if (!image.complete || !image.naturalWidth || !isOurs) return paragraph(sheet, [image], x, width, image.parentElement);
  const scale = Math.min(1, width / image.naturalWidth, PICTURE / image.naturalHeight), y = sheet.y;
  const [wide, high] = [image.naturalWidth * scale, image.naturalHeight * scale];
  sheet.drawn.push((context) => context.drawImage(image, x, y, wide, high));
  sheet.y += high;
};
const item = (sheet, element, x, width) => {
  const style = getComputedStyle(element), list = element.parentElement, isRight = style.direction === "rtl";
  const number = (list.start ?? 1) + [...list.children].indexOf(element);
  const mark = list.localName === "ol" ? `${number}.` : style.listStyleType === "none" ? "" : style.listStyleType === "circle" ? "◦" : "•";
  const base = sheet.y + heightOf(style) / 2, room = INDENT - 8 - widthOf(mark, fontOf(style));
  sheet.drawn.push((context) => {
    Object.assign(context, { font: fontOf(style), fillStyle: style.color, direction: "ltr" });
    context.fillText(mark, isRight ? x + width - INDENT + 8 : x + room, base);
  });
  flow(sheet, element, isRight ? x : x + INDENT, width - INDENT);
};
const quote = (sheet, element, x, width) => {
  const { borderInlineStartColor: fill, direction } = getComputedStyle(element), y = sheet.y, isRight = direction === "rtl";
  flow(sheet, element, isRight ? x : x + 18, width - 18);
  box(sheet, { x: isRight ? x + width - 3 : x, y, width: 3, height: sheet.y - y, fill, round: 2 });
};
const rule = (sheet, element, x, width) => {
  box(sheet, { x, y: sheet.y + 6, width, height: 1, fill: getComputedStyle(element).borderTopColor, round: 0 });
  sheet.y += 12;
};
const DRAWN = { PRE: code, TABLE: table, IMG: picture, LI: item, BLOCKQUOTE: quote, HR: rule };
const spaceAbove = (element) => (element.matches(".more") ? 0 : element.matches("li") ? 3 : element.matches("h1, h2, h3, h4, h5, h6") ? 16 : 10);
// Draws what is in an element: neighbours in a line are one paragraph, and blocks follow one another.
function flow(sheet, element, x, width) {
  let line = /** @type {ChildNode[]} */ ([]), isFirst = true;
  const space = (size) => (isFirst ? (isFirst = false) : (sheet.y += size));
  const end = () => {
    if (line.some((node) => pieces(node).some(({ text }) => text.trim()))) {
      space(8);
      paragraph(sheet, line, x, width, element);
    }
    line = [];
  };
  for (const node of element.childNodes) {
    if (sheet.y > MOST) break;
    if (!(node instanceof Element) || !node.matches(BLOCKS)) {
      if (node instanceof Text || node instanceof Element) line.push(node);
      continue;
    }
    end();
    if (isHidden(node) || !(node.textContent?.trim() || node.matches("hr, img") || $("hr, img", node))) continue;
    space(spaceAbove(node));
    if (node.localName === "math") paragraph(sheet, [node], x, width, element);
    else (DRAWN[node.tagName] ?? flow)(sheet, node, x, width);
  }
  end();
}
// The question stands in its bubble, which is as wide as its text.
const question = (sheet, bubble) => {
  const y = sheet.y, at = sheet.drawn.length, most = (WIDTH - 2 * EDGE) * 0.85 - 32, isWide = $("img, pre, table, li", bubble);
  const width = isWide ? most : Math.ceil(Math.max(...[...bubble.querySelectorAll("p")].flatMap((part) => linesOf(pieces(part), most).map(lineWidth)), 0)) + 1;
  const x = WIDTH - EDGE - width - 16;
  sheet.y += 10;
  flow(sheet, bubble, x, width);
  sheet.y += 10;
  box(sheet, { x: x - 16, y, width: width + 32, height: sheet.y - y, fill: getComputedStyle(bubble).backgroundColor, round: 16, at });
  sheet.y += 10;
};

const groundOf = (element) => {
  const { backgroundColor: ground } = getComputedStyle(element);
  return ground !== CLEAR || !element.parentElement ? ground : groundOf(element.parentElement);
};
/** A canvas with the turn, and with a line below it. @param {Element} turn @param {string} foot */
export function canvasOf(turn, foot) {
  const sheet = /** @type {Sheet} */ ({ y: EDGE, drawn: [], style: getComputedStyle(turn) });
  for (const bubble of turn.querySelectorAll("article.mine > .bubble")) question(sheet, bubble);
  for (const bubble of turn.querySelectorAll("article.answer > .bubble:not([data-kind=reasoning], [data-kind=tool_call])")) {
    sheet.y += 8;
    flow(sheet, bubble, EDGE, WIDTH - 2 * EDGE);
  }
  const isCut = sheet.y > MOST, end = Math.min(sheet.y, MOST), height = Math.ceil(end + 64);
  const ground = groundOf(turn);
  const canvas = make("canvas", { width: WIDTH * SCALE, height: height * SCALE }), context = canvas.getContext("2d");
  context.scale(SCALE, SCALE);
  Object.assign(context, { fillStyle: ground, textBaseline: "middle", textAlign: "left" });
  context.fillRect(0, 0, WIDTH, height);
  if (isCut) {
    const fade = context.createLinearGradient(0, end - FADE, 0, end);
    fade.addColorStop(0, ground.replace(/^rgb\((.*)\)$/, "rgba($1, 0)"));
    fade.addColorStop(1, ground);
    box(sheet, { x: 0, y: end - FADE, width: WIDTH, height: height - end + FADE, fill: fade, round: 0 });
    note(sheet, `… ${said.picture_cut}`, EDGE, end + 12, 13);
  }
  note(sheet, foot, EDGE, height - 24, 13);
  for (const one of sheet.drawn) one(context);
  return canvas;
}

let isDrawing = false;
/** Show the picture of a turn in a dialog, where it can be copied and saved. @param {string} id */
export async function share(id) {
  const turn = $(`#chat [data-turn="${CSS.escape(id)}"]`);
  if (!turn || isDrawing) return; // another chat is shown by now, or it is a second press
  isDrawing = true;
  try {
    await show(turn);
  } finally {
    isDrawing = false;
  }
}
const show = async (turn) => {
  const names = [$("#chats .brand"), $(".caption .model", turn)].map((one) => one?.textContent.replace(/[\s·]+$/, ""));
  const canvas = canvasOf(turn, [...names, new Date().toLocaleDateString(language, { dateStyle: "medium" })].filter(Boolean).join(" · "));
  const blob = await /** @type {Promise<Blob | null>} */ (new Promise((done) => canvas.toBlob(done, "image/png"))).catch(() => null);
  if (!blob) return hint(said.picture_failed);
  const src = URL.createObjectURL(blob), state = make("p", { role: "status" });
  const copy = button("copy", said.picture_copy, async () => {
    const isCopied = await navigator.clipboard.write([new ClipboardItem({ "image/png": blob })]).then(() => true, () => false);
    state.textContent = isCopied ? said.copied : said.picture_no_copy;
  });
  const actions = [button("close", said.close, () => dialog.close()), button("keep", said.viewer_save, () => save(`${said.answer}.png`, blob))];
  if (navigator.clipboard && "ClipboardItem" in globalThis) actions.splice(1, 0, copy);
  const stage = make("div", { class: "stage", tabindex: "0", role: "region", "aria-label": said.picture_of }, make("img", { src, alt: said.picture_of }));
  const dialog = make("dialog", { id: "picture", "aria-labelledby": "picture-title" }, make("h2", { id: "picture-title" }, said.transcript.picture),
    stage, state, make("div", { class: "actions" }, ...actions));
  dialog.addEventListener("close", () => (dialog.remove(), URL.revokeObjectURL(src)));
  document.body.append(dialog);
  dialog.showModal();
  actions[actions.length - 1].focus();
};
