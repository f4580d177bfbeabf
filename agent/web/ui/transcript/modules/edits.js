// Turns as plain values: what changes one state into the next. agent/rendering/bubbles.py says what turns, bubbles and
// edits are, and `changes` returns what its `edits` returns. Nothing here knows the page.

/**
 * @typedef {{kind: string, state: string, blocks: string[], title?: string, seconds?: number, inside?: boolean,
 *   steps?: number}} Bubble
 * @typedef {{number: number, title: string, url: string, page: number | null, passages: string[]}} Source
 * @typedef {{ids: string[], number: number}} Versions
 * @typedef {{id: string, bubbles: Bubble[], is_running: boolean, can_steer?: boolean, steered?: string[], caption?: string, text?: string,
 *   waiting?: {why: string, seconds: number, number: number}, buttons?: {label: string, value: object}[],
 *   can_branch?: boolean, is_untyped?: boolean, kept?: string, sources?: Source[], question_versions?: Versions, answer_versions?: Versions,
 *   columns?: Turn[], name?: string, is_chosen?: boolean}} Turn
 * @typedef {any[]} Edit
 */

/**
 * The number of the first block that differs.
 * @param {string[]} old
 * @param {string[]} blocks
 */
export function firstDifference(old, blocks) {
  const most = Math.min(old.length, blocks.length);
  let number = 0;
  while (number < most && old[number] === blocks[number]) number += 1;
  return number;
}

/**
 * The length of what two texts begin with, without half a character at its end.
 * @param {string} one
 * @param {string} other
 */
function sameLength(one, other) {
  const most = Math.min(one.length, other.length);
  let length = 0;
  while (length < most && one[length] === other[length]) length += 1;
  return length - (/[\ud800-\udbff]/.test(one[length - 1] ?? "") ? 1 : 0);
}

/**
 * The edits that change the blocks of a bubble.
 * @param {number} number
 * @param {string[]} old
 * @param {string[]} blocks
 * @returns {Edit[]}
 */
function blockEdits(number, old, blocks) {
  const edits = [];
  let first = firstDifference(old, blocks);
  if (first === Math.max(old.length, blocks.length)) return [];
  const same = sameLength(old[first] ?? "", blocks[first] ?? "");
  if (same) {
    edits.push(["tail", number, first, old[first].length - same, blocks[first].slice(same)]);
    first += 1;
  }
  const isSame = old.length === blocks.length && blocks.slice(first).every((block, at) => block === old[first + at]);
  if (!isSame) edits.push(["blocks", number, first, blocks.slice(first)]);
  return edits;
}

/**
 * True if two objects are the same but for these keys.
 * @param {Record<string, any>} one
 * @param {Record<string, any>} other
 * @param {string[]} apart
 */
function equalBut(one, other, ...apart) {
  const keys = new Set([...Object.keys(one), ...Object.keys(other)]);
  for (const key of apart) keys.delete(key);
  return [...keys].every((name) => name in one === name in other && JSON.stringify(one[name]) === JSON.stringify(other[name]));
}

/** A copy that shares nothing with a value that may change. @template T @param {T} value @returns {T} */
const copy = (value) => JSON.parse(JSON.stringify(value));

/**
 * The edits that change one state of a turn into the next one.
 * @param {Turn} old
 * @param {Turn} turn
 * @returns {Edit[]}
 */
export function changes(old, turn) {
  const edits = [];
  for (const [number, bubble] of turn.bubbles.entries()) {
    const last = old.bubbles[number];
    if (!last || !equalBut(last, bubble, "blocks")) edits.push(["bubble", number, copy(bubble)]);
    else edits.push(...blockEdits(number, last.blocks, bubble.blocks));
  }
  if (old.bubbles.length > turn.bubbles.length) edits.push(["cut", turn.bubbles.length]);
  const columns = old.columns ?? [], others = turn.columns ?? [], isSameNumber = columns.length === others.length;
  if (isSameNumber) columns.forEach((column, number) => {
    const made = changes(column, others[number]);
    if (made.length) edits.push(["column", number, made]);
  });
  const { bubbles, columns: given, ...fields } = turn;
  if (!isSameNumber) edits.push(["turn", copy({ ...fields, columns: others })]);
  else if (!equalBut(old, turn, "bubbles", "columns")) edits.push(["turn", copy(fields)]);
  return edits;
}

/**
 * The turn after the edits. The old one stays as it is.
 * @param {Turn} turn
 * @param {Edit[]} edits
 * @returns {Turn}
 */
export function applied(turn, edits) {
  let next = { ...turn, bubbles: [...turn.bubbles] };
  for (const [kind, number, first, given, html] of edits) {
    const { bubbles } = next;
    if (kind === "bubble") bubbles[number] = first;
    else if (kind === "blocks") bubbles[number] = { ...bubbles[number], blocks: [...bubbles[number].blocks.slice(0, first), ...given] };
    else if (kind === "tail") {
      const blocks = [...bubbles[number].blocks];
      blocks[first] = blocks[first].slice(0, blocks[first].length - given) + html;
      bubbles[number] = { ...bubbles[number], blocks };
    }
    else if (kind === "cut") bubbles.length = number;
    else if (kind === "column") next.columns = (next.columns ?? []).map((one, at) => (at === number ? applied(one, first) : one));
    else if (kind === "turn") next = { ...(next.columns && { columns: next.columns }), ...number, bubbles };
  }
  return next;
}

/**
 * A key for each bubble that stays the same while others come before it: the number of those of its kind, and for a
 * result the key of its call.
 * @param {Bubble[]} bubbles
 */
export function keys(bubbles) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  let home = "";
  return bubbles.map(({ kind, inside }) => {
    const name = inside ? `${home} ${kind}` : kind, count = counts.get(name) ?? 0, key = `${name} ${count}`;
    counts.set(name, count + 1);
    if (!inside) home = key;
    return key;
  });
}

/**
 * The text that a tail adds inside the elements that it ends, as HTML without tags, and the number of these elements;
 * nothing if it does more.
 * @param {string} dropped what it replaces
 * @param {string} html
 */
export function addedText(dropped, html) {
  const text = html.slice(0, Math.max(0, html.length - dropped.length));
  if (!/^(?:<\/\w+>\n?)+$/.test(dropped) || text.includes("<") || text + dropped !== html) return undefined;
  return { text, depth: dropped.split("</").length - 1 };
}
