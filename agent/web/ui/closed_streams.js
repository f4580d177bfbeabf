// Holds the answer to a new event back until Gradio has closed the event stream that the server has ended. Otherwise Gradio
// would believe that its stream is open, open none for the event, close the old one, and never learn what the event brings.
// Each stream has a number, and the answer says which one the server has ended.
(() => {
  const MOST_MS = 2000, send = window.fetch.bind(window);
  let number = 0, closing; // of the stream that was opened last, and the signal with which Gradio closes it
  window.fetch = async (where, how) => {
    const address = String(where?.url ?? where);
    if (address.includes("/queue/data?")) {
      const numbered = new Request(where, how);
      numbered.headers.set("x-stream", ++number);
      closing = numbered.signal;
      return send(numbered);
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
