// What is known of an artifact from its text alone: its versions, the difference of two of them, and the table and the plot
// of a CSV text. Nothing here knows the page. artifacts.js loads this.

/**
 * The keys of blocks, in their order. The versions of one artifact have one key: those of one kind and title, and of
 * several such blocks in one answer the first ones, the second ones and so on.
 * @param {{turn: string, kind: string, title: string}[]} blocks
 */
export function keysOf(blocks) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  return blocks.map(({ turn, kind, title }) => {
    const name = JSON.stringify([kind, title]), count = counts.get(`${turn} ${name}`) ?? 0;
    counts.set(`${turn} ${name}`, count + 1);
    return `${name} ${count}`;
  });
}

const AROUND = 3, MOST_PAIRS = 1_000_000; // lines shown around a change; pairs of lines that are compared
/** @typedef {[" " | "-" | "+" | "…", string]} Row a line that stays, goes or comes, or how many lines were left out */

/** The difference of two texts, line by line. @param {string} old @param {string} next @returns {Row[]} */
export function difference(old, next) {
  const [before, after] = [old, next].map((text) => text.replace(/\n$/, "").split("\n"));
  const least = Math.min(before.length, after.length);
  let first = 0, last = 0;
  while (first < least && before[first] === after[first]) first += 1;
  while (last < least - first && before[before.length - 1 - last] === after[after.length - 1 - last]) last += 1;
  const same = (/** @type {string[]} */ lines) => lines.map((line) => /** @type {Row} */ ([" ", line]));
  const rows = [...same(before.slice(0, first)), ...changed(before.slice(first, before.length - last), after.slice(first, after.length - last)),
    ...same(before.slice(before.length - last))];
  return folded(rows);
}

/** The rows of lines that begin and end differently. @param {string[]} old @param {string[]} next */
function changed(old, next) {
  /** @type {Row[]} */
  const rows = [], width = next.length + 1, isLong = old.length * next.length > MOST_PAIRS;
  const common = new Uint32Array(isLong ? 0 : (old.length + 1) * width); // how many lines the rests of both have in common
  for (let one = old.length - 1; one >= 0 && !isLong; one -= 1) {
    for (let other = next.length - 1; other >= 0; other -= 1) {
      const at = one * width + other;
      common[at] = old[one] === next[other] ? common[at + width + 1] + 1 : Math.max(common[at + width], common[at + 1]);
    }
  }
  let one = 0, other = 0;
  while (one < old.length || other < next.length) {
    const at = one * width + other, isIn = one < old.length && other < next.length;
    if (!isLong && isIn && old[one] === next[other]) rows.push([" ", old[one++]]) && (other += 1);
    else if (one < old.length && (isLong || !isIn || common[at + width] >= common[at + 1])) rows.push(["-", old[one++]]);
    else rows.push(["+", next[other++]]);
  }
  return rows;
}

/** Leave out the lines that are far from any change. @param {Row[]} rows */
function folded(rows) {
  const isNear = new Uint8Array(rows.length);
  rows.forEach(([sign], at) => sign !== " " && isNear.fill(1, Math.max(0, at - AROUND), at + AROUND + 1));
  /** @type {Row[]} */
  const shown = [];
  let left = 0;
  rows.forEach((row, at) => {
    if (!isNear[at]) left += 1;
    if (left && (isNear[at] || at === rows.length - 1)) shown.push(["…", String(left)]) && (left = 0);
    if (isNear[at]) shown.push(row);
  });
  return shown;
}

const MOST_COLUMNS = 100; // a row that has more ends with "…"
/** @typedef {{head: string[], rows: string[][], numbers: (number | undefined)[][], isNumber: boolean[]}} Table `numbers` are
 *  the values of the cells; a column `isNumber` if all its cells that are not empty have one */

/** The table of a text in CSV. Its cells are divided by commas, semicolons or tabs. @param {string} text @returns {Table} */
export function tableOf(text) {
  const line = text.slice(0, text.search(/\n|$/)), count = (/** @type {string} */ sign) => line.split(sign).length;
  const separator = ["\t", ";", ","].reduce((best, sign) => (count(sign) > count(best) ? sign : best), ",");
  /** @type {string[][]} */
  const all = [[]];
  const cell = new RegExp(`(?:"([^"]*(?:""[^"]*)*)(?:"([^${separator}\\r\\n]*)|$)|([^${separator}\\r\\n]*))(${separator}|\\r\\n?|\\n|$)`, "gy");
  for (let found = cell.exec(text); found; found = cell.exec(text)) {
    const [, quoted, after = "", plain, end] = found;
    all[all.length - 1].push(quoted === undefined ? plain.trim() : quoted.replaceAll('""', '"') + after.trimEnd());
    if (!end || cell.lastIndex === text.length) break;
    if (end !== separator) all.push([]);
  }
  const [head, ...rows] = all.filter((row) => row.some(Boolean));
  if (!head) return { head: [], rows: [], numbers: [], isNumber: [] };
  const width = Math.min(MOST_COLUMNS, all.reduce((most, row) => Math.max(most, row.length), 0));
  for (const row of all) {
    if (row.length > width) row.splice(width - 1, row.length, "…");
    while (row.length < width) row.push("");
  }
  const numbers = rows.map((row) => row.map((one) => numberOf(one, separator === ";")));
  const isNumber = head.map((_, at) => rows.some((row) => row[at]) && rows.every((row, number) => !row[at] || numbers[number][at] !== undefined));
  return { head, rows, numbers, isNumber };
}

/** The number in a cell: with a sign, a currency or a percent sign, and commas between thousands. @param {string} cell @param {boolean} hasComma a comma divides the decimals */
function numberOf(cell, hasComma) {
  const plain = cell.replace(/^([-+\u2212]?)\p{Sc}?\s?|\s?[\p{Sc}%]$/gu, "$1").replace("\u2212", "-");
  const text = hasComma ? plain.replaceAll(".", "").replace(",", ".") : plain.replace(/,(?=\d{3}\b)/g, "");
  return /^[-+]?\d+(\.\d+)?(e[-+]?\d+)?$/i.test(text) ? Number(text) : undefined;
}

/** The numbers of the rows, sorted by a column. What is empty comes last. @param {Table} table @param {number} column @param {boolean} isUp */
export function sorted({ rows, numbers, isNumber }, column, isUp) {
  const compare = new Intl.Collator(undefined, { numeric: true }).compare;
  const by = (/** @type {number} */ one, /** @type {number} */ other) => isNumber[column] ? (numbers[one][column] ?? 0) - (numbers[other][column] ?? 0) : compare(rows[one][column], rows[other][column]);
  return rows.map((_, at) => at).sort((one, other) => {
    const [isEmpty, isOther] = [!rows[one][column], !rows[other][column]];
    return isEmpty || isOther ? Number(isEmpty) - Number(isOther) : (isUp ? 1 : -1) * by(one, other);
  });
}

const WIDTH = 720, HEIGHT = 320, LEFT = 60, RIGHT = 12, TOP = 20, FOOT = 30, MOST_BARS = 30, MOST_LINES = 5, TICKS = 4, LABEL = 14;
const COLOURS = ["#4f7df0", "#e0762f", "#2f9e6b", "#b455c8", "#c9a227"];
const safe = (/** @type {string | number} */ text) => String(text).replace(/[<>&"]/g, (sign) => `&#${sign.charCodeAt(0)};`);

/**
 * The plot of a table as a picture: bars of a few named rows with one number each, else lines over the rows.
 * @param {Table} table @param {string} ink the colour of words and lines @returns {string | undefined}
 */
export function plotOf({ head, rows, numbers, isNumber }, ink) {
  const names = Math.max(0, isNumber.indexOf(false));
  const shown = head.map((_, at) => at).filter((at) => isNumber[at] && at !== names).slice(0, MOST_LINES);
  if (rows.length < 2 || !shown.length) return undefined;
  const all = numbers.flatMap((row) => shown.map((at) => row[at] ?? NaN)).filter(Number.isFinite);
  const isBars = shown.length === 1 && rows.length <= MOST_BARS;
  const [low, high] = all.reduce(([least, most], one) => [Math.min(least, one), Math.max(most, one)], [Infinity, -Infinity]); // `Math.min` takes no hundred thousand numbers
  const isFromZero = isBars || (low >= 0 && low < high / 2);
  const step = tick((isFromZero ? Math.max(0, high) - Math.min(0, low) : high - low) || Math.abs(high) || 1);
  const bottom = Math.floor((isFromZero ? Math.min(0, low) : low) / step) * step;
  const top = Math.max(bottom + step, Math.ceil((isFromZero ? Math.max(0, high) : high) / step) * step);
  if (!Number.isFinite(top - bottom) || bottom + step === bottom || top - step === top) return undefined; // numbers that are too large to be told apart
  const y = (/** @type {number} */ value) => TOP + ((top - value) / (top - bottom)) * (HEIGHT - TOP - FOOT);
  const room = (WIDTH - LEFT - RIGHT) / (isBars ? rows.length : rows.length - 1), x = (/** @type {number} */ at) => LEFT + room * (isBars ? at + 0.5 : at);
  const parts = [];
  for (let at = 0, ticks = Math.round((top - bottom) / step); at <= ticks; at += 1) {
    const value = bottom + at * step;
    const text = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 2 }).format(Math.abs(value) < step / 2 ? 0 : value);
    parts.push(`<path d="M${LEFT} ${y(value)}H${WIDTH - RIGHT}" stroke="${ink}" opacity=".16"/><text x="${LEFT - 8}" y="${y(value) + 4}" text-anchor="end">${text}</text>`);
  }
  const every = Math.ceil(rows.length / Math.max(2, Math.floor((WIDTH - LEFT) / 84)));
  rows.forEach((row, at) => {
    if (at % every) return;
    const name = row[names].length > LABEL ? `${row[names].slice(0, LABEL - 1)}…` : row[names];
    parts.push(`<text x="${x(at)}" y="${HEIGHT - 8}" text-anchor="${isBars || (at && at < rows.length - 1) ? "middle" : at ? "end" : "start"}">${safe(name)}</text>`);
  });
  shown.forEach((column, number) => {
    const points = numbers.map((row, at) => [x(at), row[column]]).filter(([, value]) => Number.isFinite(value)).map(([left = 0, value = 0]) => [left, y(value)]);
    const colour = COLOURS[number];
    if (isBars) parts.push(...points.map(([left, high]) => `<rect x="${left - room * 0.35}" y="${Math.min(high, y(0))}" width="${room * 0.7}" height="${Math.max(1, Math.abs(y(0) - high))}" rx="2" fill="${colour}"/>`));
    else parts.push(`<polyline points="${points.join(" ")}" fill="none" stroke="${colour}" stroke-width="2" stroke-linejoin="round"/>`);
    parts.push(`<text x="${LEFT + 4 + (number * (WIDTH - LEFT)) / shown.length}" y="${TOP - 4}" style="fill:${colour}" font-weight="600">${safe(head[column])}</text>`);
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${HEIGHT}" font-family="system-ui, sans-serif" font-size="14"><style>text{fill:${ink}}</style>${parts.join("")}</svg>`;
}

/** A round distance between the lines of a plot. @param {number} range */
function tick(range) {
  const rough = range / TICKS, unit = 10 ** Math.floor(Math.log10(rough));
  return unit * ([1, 2, 2.5, 5, 10].find((one) => one * unit >= rough) ?? 10);
}
