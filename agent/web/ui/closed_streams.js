// Mends two faults of Gradio's client with its event stream, after which the page would never learn again what its events
// bring.
//
// If the server has ended the stream, the answer to a new event is held back until Gradio has closed it. Otherwise Gradio
// would believe that its stream is open, open none for the event, and close the old one. Each stream has a number, and the
// answer says which one the server has ended.
//
// If a message names an answer that is being written, the page asks for it at once, while Gradio still works on the message.
//
// If the stream breaks off, for example because its process stops, Gradio is told so, and that the stream is closed.
// Gradio then ends the events that wait for it and loads the page again. If none waits, it opens a stream for the next one.
(() => {
  const MOST_MS = 2000, CLOSING = '"msg":"close_stream"', send = window.fetch.bind(window);
  const BREAK = ["broken_connection", "close_stream"].map((msg) => `data: ${JSON.stringify({ msg, message: "" })}\n\n`).join("");
  let number = 0, closing; // of the stream that was opened last, and the signal with which Gradio closes it
  const closed = (answer, { signal }) => {
    if (!answer.ok) return answer;
    const decoder = new TextDecoder(), chunks = answer.body.getReader();
    let text = ""; // the end of what was read
    const pull = async (stream) => {
      const { value, done } = await chunks.read().catch(() => ({ done: true }));
      if (value) {
        text = text.slice(-CLOSING.length) + decoder.decode(value, { stream: true });
        const live = /"live":"(runs\/[^"\\]+)"/.exec(text)?.[1];
        if (live) window.live?.expect(live);
        return stream.enqueue(value);
      }
      if (done && !text.includes(CLOSING) && !signal.aborted) stream.enqueue(new TextEncoder().encode(`\n\n${BREAK}`));
      stream.close();
    };
    return new Response(new ReadableStream({ pull, cancel: () => chunks.cancel() }), answer);
  };
  window.fetch = async (where, how) => {
    const address = String(where?.url ?? where);
    if (address.includes("/queue/data?")) {
      const numbered = new Request(where, how);
      numbered.headers.set("x-stream", ++number);
      closing = numbered.signal;
      return closed(await send(numbered), numbered);
    }
    const answer = await send(where, how);
    if (!address.includes("/queue/join") || answer.headers.get("x-ended-stream") !== String(number)) return answer;
    const open = closing;
    if (!open.aborted) await new Promise((done) => {
      open.addEventListener("abort", done, { once: true });
      setTimeout(done, MOST_MS);
    });
    return answer;
  };
})();
