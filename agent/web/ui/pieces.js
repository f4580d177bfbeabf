// Says where a growing answer can be cut, so that what is above the cut need not be drawn again.
() => {
  const LEAST = 700; // characters of a piece
  const OPEN_FORMULA = 2000; // characters after which a formula without an end is none
  const FORMULAS = [["$$", "$$"], ["\\[", "\\]"]];
  const ITEM = /^ *(?:[-*+]|\d{1,9}[.)])(?:\s|$)/;
  const FENCE = /^((?:[ >]|(?:[-*+]|\d{1,9}[.)]) )*)(`{3,}|~{3,})(.*)$/;
  const TAG = /<(\/?)([a-z][a-z0-9]*)\b[^<>]*?(\/?)>/gi;
  const EMPTY = /^(?:area|base|br|col|embed|hr|img|input|link|meta|source|track|wbr)$/i;
  const KNOWN = /^(?:a|abbr|address|article|aside|audio|b|blockquote|button|center|cite|code|dd|del|details|dfn|div|dl|dt|em|fieldset|figcaption|figure|font|footer|form|h[1-6]|header|i|iframe|ins|kbd|label|li|main|mark|nav|ol|option|p|picture|pre|q|s|samp|script|section|select|small|span|strike|strong|style|sub|summary|sup|svg|table|tbody|td|textarea|tfoot|th|thead|tr|tt|u|ul|var|video)$/i;

  // Reads a text line by line, and knows what is open at the beginning of the next line.
  const reader = () => {
    let fence, formula, list = false, quote = false, comment = false, tags = [];

    const inFence = (line) => {
      const indent = /^ */.exec(line)[0].length;
      if (fence.nested ? line.trim() && indent < 2 : fence.quoted && !line.trimStart().startsWith(">")) {
        fence = undefined; // the list or the quotation has ended
        return false;
      }
      const [, before, marks, rest] = FENCE.exec(line) ?? [];
      const place = fence.nested ? /^ *$/ : fence.quoted ? /^[ >]*$/ : /^ {0,3}$/;
      if (marks?.startsWith(fence.marks) && !rest.trim() && place.test(before)) fence = undefined;
      return true;
    };
    const opensFence = (line) => {
      const [, before, marks, info] = FENCE.exec(line) ?? [];
      if (!marks || (marks[0] === "`" && info.includes("`"))) return false;
      const quoted = before.includes(">");
      const nested = !quoted && (ITEM.test(before) || (list && before.length > 0));
      if (!quoted && !nested && before.length > 3) return false;
      fence = { marks, quoted, nested };
      return true;
    };
    const formulas = (line) => {
      for (let at = 0; at < line.length; ) {
        if (formula) {
          const end = line.indexOf(formula.end, at);
          if (end < 0) break;
          at = end + 2;
          formula = undefined;
        } else {
          const found = FORMULAS.map(([start, end]) => [line.indexOf(start, at), end]).filter(([n]) => n >= 0);
          if (!found.length) return;
          const [n, end] = found.sort(([a], [b]) => a - b)[0];
          formula = { end, length: 0 };
          at = n + 2;
        }
      }
      if (formula && (formula.length += line.length + 1) > OPEN_FORMULA) formula = undefined;
    };
    const html = (line) => {
      line = line.replace(/(`+)(?!`).*?[^`]\1(?!`)/g, "").replace(/<!--.*?-->/g, "");
      if (comment ? line.includes("-->") : line.includes("<!--")) comment = !comment;
      for (const [, close, name, itself] of line.matchAll(TAG)) {
        if (itself || EMPTY.test(name) || !KNOWN.test(name)) continue;
        if (!close) tags.push(name.toLowerCase());
        else if (tags.includes(name.toLowerCase())) tags.length = tags.lastIndexOf(name.toLowerCase());
      }
    };
    return {
      // A block that begins with this line, after an empty one, has nothing to do with what is before.
      begins: (line) =>
        /^[^\s]/.test(line) && !fence && !formula && !comment && !tags.length &&
        !(list && ITEM.test(line)) && !(quote && line.startsWith(">")),
      read: (line, afterEmpty) => {
        formulas(line);
        if (fence && inFence(line)) return;
        if (!line.trim()) return;
        if (ITEM.test(line)) list = true;
        else if (/^\S/.test(line) && (afterEmpty || /^(?:`{3}|~{3}|#)/.test(line))) list = false;
        if (/^ {0,3}>/.test(line)) quote = true;
        else if (afterEmpty && /^\S/.test(line)) quote = false;
        if (!opensFence(line)) html(line);
      },
    };
  };

  // Returns the length of the first piece of the text, or 0 if it cannot be cut yet. More text never changes a length
  // that is not 0: it depends only on complete lines.
  const end = (text) => {
    if (text.length <= LEAST) return 0;
    const reads = reader();
    let empty = false;
    for (let at = 0, next; (next = text.indexOf("\n", at) + 1); at = next) {
      const line = text.slice(at, next - 1).replace(/\t/g, "    ");
      if (at >= LEAST && empty && reads.begins(line)) return at;
      reads.read(line, empty);
      empty = !line.trim();
    }
    return 0;
  };
  return { end, LEAST };
}
