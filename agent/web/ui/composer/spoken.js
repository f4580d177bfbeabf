// What is spoken of a text, in which language, and when somebody speaks. Nothing here knows the page.

const LONGEST = 400; // characters of what is spoken at once
const LONG_CODE = 40; // characters of code and formulas within a sentence that are still spoken
const SHORT = /(?:^|[\s(])(?:\p{L}|\p{N}+|[Dd]r|[Mm]rs?|[Ms]s|St|[Pp]rof|[Nn]r|[Nn]o|[Bb]zw|[Cc]a|vs|etc|[Uu]sw|[Ff]ig|[Aa]bb|[Ee]tc|p\.ex|e\.g|i\.e|z\.\s?B|d\.\s?h|u\.\s?a)\.$/u;
const END = /[.!?…]+["'”’»)\]]*(?=\s|$)|[。！？]+[」』”’）]*|\n/gu;
/** What begins something of which the end has not come. */
const OPEN = [/`/, /\$(?=[^\s\d$])[^$]*$/, /\\\((?!.*\\\))/, /!?\[[^\]]*$/, /!?\[[^\]]*\](?:$|\([^)]*$)/, /<\/?[a-z][^>]*$/i, /https?:\S*$/, /\*\*[^*]*$/];
const SIGNS = { times: "×", cdot: "·", div: "÷", pm: "±", leq: "≤", le: "≤", geq: "≥", ge: "≥", neq: "≠", approx: "≈", to: "→", infty: "∞", pi: "π", alpha: "α", beta: "β", lambda: "λ", sum: "∑", sqrt: "√" };

/** A formula that is simple enough to be spoken, or nothing. @param {string} tex */
const formula = (tex) => {
  const said = tex.replace(/\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}/g, "$1 / $2").replace(/\\(?:text|mathrm|operatorname)\s*\{([^{}]*)\}/g, "$1")
    .replace(/\\([a-zA-Z]+)/g, (all, name) => /** @type {any} */ (SIGNS)[name] ?? all).replace(/\\[,;:! ]/g, " ").replace(/[{}]/g, "").replace(/\^2(?!\d)/g, "²").replace(/\^3(?!\d)/g, "³");
  return said.includes("\\") || said.length > LONG_CODE ? "" : said.trim();
};
/** The host of an address, which is what people say of it. @param {string} url */
const host = (url) => /^[a-z]+:\/\/(?:www\.)?([^/?#:]+)/i.exec(url)?.[1] ?? url;

/**
 * The text of an answer in Markdown without what cannot be heard: code, tables' lines, addresses, long formulas, numbers of
 * sources. A text that still grows ends before a sign whose end has not come.
 * @param {string} markdown @param {boolean} [isWhole]
 */
export function spokenOf(markdown, isWhole = true) {
  let text = markdown.replace(/\r\n?/g, "\n").replace(/^ {0,3}(`{3,}|~{3,})[^\n]*\n(?:[\s\S]*?\n)?? {0,3}\1[^\n]*(?:\n|$)/gm, "\n");
  text = text.replace(/^ {0,3}(?:`{3,}|~{3,})[\s\S]*$/m, ""); // a block without an end
  text = text.replace(/\$\$[\s\S]*?\$\$|\\\[[\s\S]*?\\\]/g, "\n").replace(/<!--[\s\S]*?-->/g, "");
  if (!isWhole) text = text.replace(/(?:\$\$|\\\[|<!--)[\s\S]*$/, "");
  if (!isWhole) { // of the last line, what is before a sign without an end
    const at = text.lastIndexOf("\n") + 1, line = text.slice(at);
    const left = line.replace(/`[^`]*`|\$(?=\S)[^$]*\S\$(?!\d)/g, (whole) => " ".repeat(whole.length));
    const open = OPEN.map((sign) => left.search(sign)).filter((place) => place >= 0);
    text = text.slice(0, at) + (open.length ? line.slice(0, Math.min(...open)) : line);
  }
  return text
    .replace(/^ {0,3}\[\^?[^\]\n]+\]:.*$/gm, "")
    .replace(/`+([^`\n]+)`+/g, (_, code) => (code.length > LONG_CODE ? "" : code))
    .replace(/\\\((.+?)\\\)|\$(?=\S)([^$\n]*\S)\$(?!\d)/g, (_, one, other) => formula(one ?? other))
    .replace(/!\[([^\]]*)\]\([^)]*\)/g, "$1")
    .replace(/\[([^\]]+)\]\((?:[^()\s]|\([^()\s]*\))*(?:\s"[^"]*")?\)/g, "$1")
    .replace(/<(https?:[^>\s]+)>|(https?:\/\/[^\s<>()\]]*[^\s<>()\].,;:!?])/gi, (_, one, other) => host(one ?? other))
    .replace(/\[\^?\d+(?:[,–-]\s?\d+)*\]|【[^】]*】/g, "")
    .replace(/<br\s*\/?>/gi, "\n").replace(/<\/?[a-z][^<>]*>/gi, "")
    .replace(/^[ \t]*\|?(?:[ \t]*:?-{2,}:?[ \t]*\|)+[ \t]*:?-*:?[ \t]*$/gm, "").replace(/^[ \t]*(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,}|=+[ \t]*)$/gm, "")
    .replace(/^[ \t]*\|(.*?)\|?[ \t]*$/gm, (_, row) => row.split("|").map((/** @type {string} */ cell) => cell.trim()).filter(Boolean).join(", "))
    .replace(/^[ \t]*(?:>[ \t]?)+/gm, "").replace(/^[ \t]*(?:#{1,6}[ \t]+|[-*+][ \t]+(?:\[[ xX]\][ \t]+)?)/gm, "").replace(/[ \t]#+$/gm, "")
    .replace(/(\*\*|__|~~|==)(?=\S)(.+?)\1/g, "$2").replace(/(?<![\p{L}\p{N}*_])([*_])(?=\S)([^*_\n]+)\1(?![\p{L}\p{N}])/gu, "$2").replace(/\*\*/g, "")
    .replace(/&nbsp;/g, " ").replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&quot;/g, '"').replace(/&amp;/g, "&").replace(/\\([\\`*_{}[\]()#+.!|~>-])/g, "$1")
    .replace(/[ \t]+/g, " ").replace(/\s*\n\s*/g, "\n").replace(/ ([.,;:!?])(?=\s|$)/g, "$1");
}

/** A text in parts that are not too long, cut at a comma or a space. @param {string} text @returns {string[]} */
const cut = (text) => {
  if (text.length <= LONGEST) return [text];
  const head = text.slice(0, LONGEST), at = Math.max(head.lastIndexOf(", "), head.lastIndexOf("; "), head.lastIndexOf("，") - 1) + 1;
  const place = at > LONGEST / 3 ? at : head.lastIndexOf(" ") > 0 ? head.lastIndexOf(" ") : LONGEST - (/[\ud800-\udbff]$/.test(head) ? 1 : 0);
  return [text.slice(0, place).trim(), ...cut(text.slice(place).trim())];
};

/**
 * The sentences of a text. One that still grows ends with its last sentence that has an end.
 * @param {string} text @param {boolean} [isWhole]
 */
export function sentencesOf(text, isWhole = true) {
  const found = /** @type {string[]} */ ([]);
  let from = 0;
  const take = (/** @type {number} */ to) => {
    const sentence = text.slice(from, to).replace(/\s+/g, " ").trim();
    from = to;
    if (/[\p{L}\p{N}]/u.test(sentence)) found.push(...cut(sentence));
  };
  for (const { 0: sign, index } of text.matchAll(END)) {
    const to = index + sign.length;
    if (to === text.length && !isWhole && sign[0] === ".") continue; // a number or a name can go on
    if (sign !== "." || !SHORT.test(text.slice(Math.max(from, to - 12), to))) take(to);
  }
  if (isWhole) take(text.length);
  return found;
}

const LETTERS = /** @type {[string, RegExp][]} */ ([["ko", /\p{Script=Hangul}/gu], ["ja", /[\p{Script=Hiragana}\p{Script=Katakana}]/gu], ["zh", /\p{Script=Han}/gu], ["ru", /\p{Script=Cyrillic}/gu],
  ["el", /\p{Script=Greek}/gu], ["ar", /\p{Script=Arabic}/gu], ["he", /\p{Script=Hebrew}/gu], ["hi", /\p{Script=Devanagari}/gu], ["th", /\p{Script=Thai}/gu]]);
const WORDS = {
  en: "the and is of to in that it you for with are this was not have on be or as", de: "der die das und ist nicht ein eine zu mit den von auf für sich im auch dem wie es",
  fr: "le la les et est une des du que pour dans pas vous sur avec ce sont il au ne", es: "el los las y es una que del por para con no se su lo como más está al son",
  it: "il gli e è una che di per non con sono del della si le un come più nel anche", pt: "o os e é uma que do da para não com em por se um mais como são no na", nl: "de het een en is van niet dat op te met voor zijn aan er ook bij om als je",
};

/** The language of a text, or what is given if nothing tells it. @param {string} text @param {string} given */
export function languageOf(text, given) {
  const all = (text.match(/\p{L}/gu) ?? []).length, count = (/** @type {RegExp} */ signs) => (text.match(signs) ?? []).length;
  const script = LETTERS.find(([, signs]) => all && count(signs) > all / 5)?.[0];
  if (script) return script;
  const words = text.toLowerCase().match(/\p{L}+/gu) ?? [];
  const scores = Object.entries(WORDS).map(([language, known]) => [language, words.filter((word) => known.split(" ").includes(word)).length]);
  const [[first, most], [, next]] = scores.sort(([, one], [, other]) => Number(other) - Number(one));
  return Number(most) > 1 && most !== next ? String(first) : given;
}

const LEAST_LEVEL = 0.012, ABOVE_NOISE = 3, LOUD_MS = 120, VOICE_MS = 250, PAUSE_MS = 900, BEFORE_MS = 400, MOST_MS = 60_000;

/** Hears from the level when somebody begins to speak and has ended, and keeps what was said. */
export class Ear {
  blocks = /** @type {Float32Array[]} */ ([]);
  isSpeaking = false;
  isStrict = false; // the page speaks: only what is louder counts
  level = 0; // of the last block, from 0 to 1
  loud = 0; // milliseconds, as the next ones
  quiet = 0;
  voiced = 0;
  kept = 0;
  noise = LEAST_LEVEL / ABOVE_NOISE; // the level of the room

  /** @param {number} rate samples a second */
  constructor(rate) {
    this.rate = rate;
  }

  forget() {
    this.blocks = [];
    [this.isSpeaking, this.loud, this.quiet, this.voiced, this.kept] = [false, 0, 0, 0, 0];
  }

  /** Hear the next samples. Returns "begins", "ends", or "": a cough is no speech. @param {Float32Array} block */
  hear(block) {
    const ms = (1000 * block.length) / this.rate, level = this.level = Math.sqrt(block.reduce((sum, one) => sum + one * one, 0) / block.length);
    const isLoud = level > Math.max(LEAST_LEVEL, ABOVE_NOISE * this.noise) * (this.isStrict ? 2 : 1);
    this.blocks.push(block);
    this.kept += ms;
    this.loud = isLoud ? this.loud + ms : Math.max(0, this.loud - ms);
    if (!this.isSpeaking) {
      if (!isLoud) this.noise += (level - this.noise) * 0.05;
      while (this.kept - ms > BEFORE_MS + this.loud) this.kept -= (1000 * /** @type {Float32Array} */ (this.blocks.shift()).length) / this.rate;
      if (this.loud < LOUD_MS * (this.isStrict ? 2 : 1)) return "";
      [this.isSpeaking, this.voiced, this.quiet] = [true, this.loud, 0];
      return "begins";
    }
    this.voiced += isLoud ? ms : 0;
    this.quiet = isLoud ? 0 : this.quiet + ms;
    if (this.quiet < PAUSE_MS && this.kept < MOST_MS) return "";
    if (this.voiced < VOICE_MS) return this.forget() ?? "";
    [this.isSpeaking, this.loud] = [false, 0];
    return "ends";
  }

  /** What was said, as a sound file, and begin anew. */
  take() {
    const data = wavOf(this.blocks, this.rate);
    this.forget();
    return data;
  }
}

/** A WAV file of these samples with about 16,000 a second. @param {Float32Array[]} blocks @param {number} rate */
export function wavOf(blocks, rate) {
  const step = Math.max(1, Math.floor(rate / 16_000)), all = blocks.reduce((sum, { length }) => sum + length, 0), count = Math.floor(all / step);
  const file = new DataView(new ArrayBuffer(44 + 2 * count)), hertz = Math.round(rate / step);
  const text = (/** @type {number} */ at, /** @type {string} */ said) => [...said].forEach((sign, n) => file.setUint8(at + n, sign.charCodeAt(0)));
  [[0, "RIFF"], [8, "WAVEfmt "], [36, "data"]].forEach(([at, said]) => text(Number(at), String(said)));
  [[4, 36 + 2 * count], [16, 16], [24, hertz], [28, 2 * hertz], [40, 2 * count]].forEach(([at, value]) => file.setUint32(at, value, true));
  [[20, 1], [22, 1], [32, 2], [34, 16]].forEach(([at, value]) => file.setUint16(at, value, true));
  let sum = 0, n = 0;
  for (const block of blocks) {
    for (const one of block) {
      sum += one;
      if (++n % step) continue;
      if (n / step <= count) file.setInt16(42 + 2 * (n / step), 32_767 * Math.max(-1, Math.min(1, sum / step)), true);
      sum = 0;
    }
  }
  return file.buffer;
}
