// Reads the stream of an answer that is being written. It continues a broken stream after its last frame. If a proxy
// holds the stream back, it polls.
() => {
  const FIRST_MS = 3000; // the first bytes of a stream come at once, unless something holds them back
  const SILENCE_MS = 35000; // the server sends something every 15 seconds
  const RETRY_MS = 1000, POLL_MS = 700;

  let url = "", last = "", request; // what is read, the id of its last frame, and the running request
  let polls = false;
  let early; // a request for an answer that the page is about to read

  const wait = (ms) => new Promise((done) => setTimeout(done, ms));
  // A connection of before a break can look open for minutes.
  addEventListener("online", () => request?.abort());
  const ask = (wanted, after, signal) => {
    const root = (window.gradio_config?.root ?? "").replace(/\/$/, "");
    return fetch(`${root}/${wanted}&after=${encodeURIComponent(after)}${polls ? "&wait=0" : ""}`, { signal, cache: "no-store" });
  };
  const takeEarly = (wanted) => {
    const found = early;
    early = undefined;
    if (found?.wanted === wanted && last === "") return found;
    found?.control.abort();
    return undefined;
  };

  // Gives the frames of complete events to `got`. Returns the rest of the text, or what the end says.
  const take = (text, got) => {
    const events = text.split("\n\n"), rest = events.pop(), frames = [];
    let end;
    for (const event of events) {
      const field = Object.fromEntries(event.split("\n").map((line) => /^(\w*): ?(.*)$/s.exec(line)?.slice(1) ?? ["", ""]));
      if (field.event === "end") {
        end = JSON.parse(field.data);
        break;
      }
      if (!field.id) continue;
      frames.push(JSON.parse(field.data));
      last = field.id;
    }
    got(frames);
    return end ?? rest;
  };

  // Reads one response. Returns what the end says, or undefined if the answer has not ended.
  const readOnce = async (wanted, got) => {
    const begun = takeEarly(wanted), mine = (request = begun?.control ?? new AbortController());
    let timer = setTimeout(() => {
      polls = true;
      mine.abort();
    }, polls ? SILENCE_MS : FIRST_MS);
    try {
      const response = await (begun?.response ?? ask(wanted, last, mine.signal));
      if (response.status === 404) return {}; // it ended a while ago, and is stored
      if (response.status === 429) polls = true;
      if (!response.ok) return undefined;
      const chunks = response.body.getReader(), decoder = new TextDecoder();
      for (let text = "";;) {
        const { value, done } = await chunks.read();
        clearTimeout(timer);
        if (done || wanted !== url) return undefined;
        timer = setTimeout(() => mine.abort(), SILENCE_MS);
        const left = take(text + decoder.decode(value, { stream: true }), got);
        if (typeof left !== "string") return left;
        text = left;
      }
    } catch {
      return undefined; // no network, or a break: it is read again
    } finally {
      clearTimeout(timer);
      mine.abort();
    }
  };

  return {
    reading: () => url,
    reads: (wanted) => Boolean(wanted) && wanted === url,
    hasBegun: () => last !== "",
    // Reads this answer from its beginning, or none, and no longer the one before.
    turnTo: (wanted) => {
      request?.abort();
      [url, last] = [wanted, ""];
    },
    // Asks for an answer of which Gradio has not told the page yet, so that its first words are there when it does.
    expect: (wanted) => {
      if (wanted === url || wanted === early?.wanted || polls) return;
      takeEarly();
      const control = new AbortController(), mine = (early = { wanted, control });
      mine.response = ask(wanted, "", control.signal);
      mine.response.catch(() => {});
      setTimeout(() => early === mine && takeEarly(), FIRST_MS);
    },
    // Gives the frames of the answer to `got`. Returns what the end says, or undefined if another answer is to be read.
    read: async (got) => {
      const wanted = url;
      while (wanted === url) {
        const end = await readOnce(wanted, got);
        if (end) {
          if (wanted !== url) return undefined;
          url = "";
          return end;
        }
        if (wanted === url) await wait(polls ? POLL_MS : RETRY_MS);
      }
      return undefined;
    },
  };
}
