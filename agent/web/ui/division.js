// Divides texts, because Gradio draws a message as a whole. The answer that is being written is divided between two
// chatbots: what is done, in pieces, and what grows. A long text that is stored is shown in parts of some pieces.
({ pieces }) => {
  const SEAM = '<div class="seam"></div>';
  const PART = 5; // pieces that a chatbot gets or loses at once when the answer ends
  const HALF_LINK = /!?\[([^\[\]\n]+)\]\((?:[^()\s]|\([^()\s]*\)?)*$/; // at the end of a text
  const DEFINITION = /^ {0,3}\[[^\]\n]+\]:\s/m; // of a link, which is used anywhere in the text

  const isText = ({ role, metadata, content }) => role === "assistant" && !metadata && content.length === 1 && Boolean(content[0].text);
  // The pieces of a text, of which the first ones may be known.
  const cutText = (text, known) => {
    const texts = [];
    let at = 0;
    for (const one of known) {
      if (!text.startsWith(one, at)) break;
      texts.push(one);
      at += one.length;
    }
    for (let length; (length = pieces.end(text.slice(at))); at += length) texts.push(text.slice(at, at + length));
    return [...texts, text.slice(at)];
  };
  // The message that shows one of the texts. Seams have the texts look like one.
  const framed = (message, texts, n) => {
    const isLast = n === texts.length - 1;
    const text = [n ? SEAM : "", texts[n], isLast ? "" : SEAM].filter(Boolean).join("\n\n");
    return { ...message, content: [{ type: "text", text }], options: isLast ? message.options : null };
  };

  // A message as the pieces in which it is shown. Unchanged pieces are the same objects as before.
  let cut = []; // the pieces of each written message
  const inPieces = (message, number) => {
    const before = cut[number];
    if (before?.message === message) return before.shown;
    const texts = isText(message) ? cutText(message.content[0].text, before?.texts.slice(0, -1) ?? []) : [];
    const end = texts.length - 1;
    const shown = end < 1 ? [message] : texts.map((one, n) => {
      const isSame = n < end && n < before?.texts.length - 1 && before.texts[n] === one;
      return isSame ? before.shown[n] : framed(message, texts, n);
    });
    cut[number] = { message, texts, shown };
    return shown;
  };
  // The number of the first message that is likely to change: the last one, or an earlier call without a result.
  const firstOpen = (written) => {
    let first = Math.max(written.length - 1, 0);
    while (first > 0 && written[first].content[0]?.text?.startsWith('<div class="')) first--; // what follows a text
    if (written[first]?.role === "user") return first + 1;
    const called = written.findIndex(({ metadata }) => metadata?.status === "pending" && !metadata.steps);
    if (called >= 0) first = Math.min(first, called);
    for (let n = written.length - 1; n >= first; n--) {
      const parent = written[n].metadata?.parent_id;
      const holder = parent ? written.findIndex(({ metadata }) => metadata?.id === parent) : n;
      if (holder >= 0) first = Math.min(first, holder);
    }
    return first;
  };
  // A link is shown as its words while its address is being written. What is in code is no link.
  const withoutAddress = (message) => {
    if (!isText(message)) return message;
    const [{ text }] = message.content, line = text.slice(text.lastIndexOf("\n") + 1), found = HALF_LINK.exec(line);
    const isInCode = (marks, code) => (code.match(marks)?.length ?? 0) % 2 > 0;
    if (!found || isInCode(/`/g, line.slice(0, found.index)) || isInCode(/^[ >]*(?:`{3}|~{3})/gm, text)) return message;
    return { ...message, content: [{ type: "text", text: text.slice(0, text.length - found[0].length) + found[1] }] };
  };
  // What each of the two chatbots is to show.
  const divide = (turn) => {
    const written = turn.map(withoutAddress);
    const first = firstOpen(written);
    const closed = written.slice(0, first).flatMap(inPieces);
    const open = written.slice(first).flatMap((message, n) => (n ? [message] : inPieces(message, first)));
    if (open.length) closed.push(...open.splice(0, cut[first].shown.length - 1));
    cut.length = written.length;
    return [closed, open];
  };
  // A stored message as the parts in which it is shown: always the same objects.
  const parts = new WeakMap();
  const inParts = (message) => {
    if (!isText(message) || message.content[0].text.length <= PART * pieces.LEAST) return [message];
    if (!parts.has(message)) {
      const [{ text }] = message.content, texts = DEFINITION.test(text) ? [text] : cutText(text, []), joined = [];
      for (let n = 0; n < texts.length; n += PART) joined.push(texts.slice(n, n + PART).join(""));
      parts.set(message, joined.length > 1 ? joined.map((_, n) => framed(message, joined, n)) : [message]);
    }
    return parts.get(message);
  };
  // The text of an answer, from the texts of its bubbles: parts of one text are put together again.
  const joined = (texts) => texts.join("\n\n").replaceAll(`\n\n${SEAM}\n\n${SEAM}\n\n`, "");
  const settled = (messages) => messages.flatMap(inParts);
  // The stages in which a chatbot gets a long turn, without the last one, the turn itself.
  const stages = (turn) => {
    const shown = settled(turn), ends = shown.flatMap(({ content: [first] }, n) => (first?.text?.endsWith(SEAM) ? [n + 1] : []));
    return ends.map((end) => shown.slice(0, end));
  };
  // What the two chatbots show when they have lost the last pieces.
  const less = (closed) => [closed.slice(0, -PART), []];
  return { divide, settled, stages, less, joined };
}
