// Divides the answer that is being written between two chatbots: what is done, in pieces, and what grows.
({ pieces }) => {
  const SEAM = '<div class="seam"></div>';
  const STAGE = 5; // pieces that a chatbot gets or loses at once when the answer ends

  // A message as the pieces in which it is shown. Unchanged pieces are the same objects as before.
  let cut = []; // the pieces of each written message
  const inPieces = (message, number) => {
    const before = cut[number];
    if (before?.message === message) return before.shown;
    const texts = [], [{ text }] = message.content;
    if (message.role === "assistant" && !message.metadata && text) {
      let at = 0;
      for (const one of before?.texts.slice(0, -1) ?? []) {
        if (!text.startsWith(one, at)) break;
        texts.push(one);
        at += one.length;
      }
      for (let length; (length = pieces.end(text.slice(at))); at += length) texts.push(text.slice(at, at + length));
      texts.push(text.slice(at));
    }
    const end = texts.length - 1;
    const shown = end < 1 ? [message] : texts.map((one, n) => {
      if (n < end && n < before?.texts.length - 1 && before.texts[n] === one) return before.shown[n];
      const framed = [n ? SEAM : "", one, n < end ? SEAM : ""].filter(Boolean).join("\n\n");
      return { ...message, content: [{ type: "text", text: framed }], options: n < end ? null : message.options };
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
  // What each of the two chatbots is to show.
  const divide = (written) => {
    const first = firstOpen(written);
    const closed = written.slice(0, first).flatMap(inPieces);
    const open = written.slice(first).flatMap((message, n) => (n ? [message] : inPieces(message, first)));
    if (open.length) closed.push(...open.splice(0, cut[first].shown.length - 1));
    cut.length = written.length;
    return [closed, open];
  };
  // The stages in which a chatbot gets a long turn, without the last one, the turn itself. Each text that is not whole
  // yet ends in a seam.
  const stages = (turn) => turn.flatMap((message, n) => {
    inPieces(message, n);
    const { texts } = cut[n], ends = [];
    for (let end = STAGE; end < texts.length; end += STAGE) ends.push(end);
    return ends.map((end) => {
      const text = `${texts.slice(0, end).join("")}\n\n${SEAM}`;
      return [...turn.slice(0, n), { ...message, content: [{ type: "text", text }], options: null }];
    });
  });
  // What the two chatbots show when they have lost the last pieces.
  const less = (closed) => [closed.slice(0, -STAGE), []];
  return { divide, stages, less };
}
