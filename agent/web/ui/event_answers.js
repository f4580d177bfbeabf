// Brings the messages of an event in the answer to the request for it (see `event_answer.py`). Gradio's client would open
// a stream for the messages of all events, and close it when none is left. It gets a stream that this script writes
// instead, which stays open.
//
// If a message names an answer that is being written, the page asks for it at once, while Gradio still works on the message.
//
// If an answer breaks off before the end of its event, for example because the process stops, Gradio is told so. It then
// loads the page again.
(() => {
  const END = /"msg":"(?:process_completed|unexpected_error)"/, send = window.fetch.bind(window);
  let inbox; // of the stream that Gradio reads
  const early = []; // messages before it reads one
  const tell = (text) => (inbox ? inbox.enqueue(new TextEncoder().encode(text)) : early.push(text));
  const open = (signal) => {
    const body = new ReadableStream({
      start: (stream) => {
        inbox = stream;
        early.splice(0).forEach(tell);
        signal?.addEventListener("abort", () => {
          if (inbox === stream) inbox = undefined;
          stream.error(signal.reason);
        });
      },
    });
    return new Response(body, { headers: { "content-type": "text/event-stream" } });
  };
  const read = async (answer, id) => {
    const decoder = new TextDecoder(), chunks = answer.body.getReader();
    let text = "", hasEnded = false;
    while (true) {
      const { value, done } = await chunks.read().catch(() => ({ done: true }));
      if (done) break;
      text += decoder.decode(value, { stream: true });
      const end = text.lastIndexOf("\n\n") + 2;
      if (end < 2) continue;
      const whole = text.slice(0, end);
      text = text.slice(end);
      const live = /"live":"(runs\/[^"\\]+)"/.exec(whole)?.[1];
      if (live) window.live?.expect(live);
      hasEnded ||= END.test(whole);
      tell(whole);
    }
    if (!hasEnded) tell(`data: ${JSON.stringify({ msg: "broken_connection", event_id: id, message: "" })}\n\n`);
  };
  window.fetch = async (where, how) => {
    const address = String(where?.url ?? where);
    if (address.includes("/queue/data?")) return open(how?.signal ?? where?.signal);
    if (!address.includes("/queue/join")) return send(where, how);
    const headers = new Headers(how.headers);
    headers.set("x-event-stream", "1");
    const answer = await send(where, { ...how, headers }), id = answer.headers.get("x-event-id");
    if (!id) return answer; // it was refused
    read(answer, id);
    return Response.json({ event_id: id });
  };
})();
