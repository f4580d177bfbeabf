// Helpers of all scripts of the page. `said` are the texts of page_text.py in the language of the page.
(said, language, { make, composes, soft, sends, ...modules }) => {
  const ANSWER_MS = 3000;
  const $ = (selector, root = document) => root.querySelector(selector);
  const when = (selector, then) => {
    const found = $(selector);
    if (found) return then(found);
    setTimeout(() => when(selector, then), 50);
  };
  // A key that an input method uses in a field confirms or cancels what is composed, and nothing else: no script gets it, and
  // neither does Gradio.
  let composed = false; // with the last key
  for (const kind of ["keydown", "keypress"]) {
    window.addEventListener(kind, (event) => {
      composed = composes(event) || (composed && kind === "keypress");
      if (!composed || !event.target.matches?.("input, textarea")) return;
      event.stopImmediatePropagation();
      if (event.key === "Enter" && kind === "keypress") event.preventDefault();
    }, true);
  }
  // A hint above the composer that disappears by itself, or as soon as `isSo` no longer returns true. It is asked again and
  // again, because what a hint says can end in many ways: by a key, a button, another script or the server.
  const note = document.createElement("p");
  note.id = "hint";
  note.setAttribute("role", "status");
  when("#dock", (dock) => {
    dock.append(note);
    // What floats above the composer floats above the notes between the chat and the composer, too.
    const foot = dock.parentElement;
    const moved = (one) => new DOMMatrix(getComputedStyle(one).transform).m42; // the dock glides to the foot of a new chat
    const top = (one) => one.getBoundingClientRect().top - moved(one);
    const sizes = new ResizeObserver(() => {
      let first = foot;
      for (let one = foot; one && one.id !== "chat"; one = one.previousElementSibling) if (one.offsetHeight) first = one;
      dock.style.setProperty("--notes", `${top(dock) - top(first)}px`);
    });
    for (const around of [foot, foot.parentElement]) {
      const observe = () => [...around.children].forEach((one) => sizes.observe(one));
      new MutationObserver(observe).observe(around, { childList: true });
      observe();
    }
  });
  let leaving;
  const hint = (text, isSo = () => true, seconds = 6) => {
    clearInterval(leaving);
    note.textContent = text;
    let left = 10 * seconds; // times 100 ms
    if (text) leaving = setInterval(() => (left-- && isSo()) || hint(""), 100);
  };
  const frame = () => new Promise((done) => {
    const hidden = setTimeout(done, 100); // a hidden page has no frames
    requestAnimationFrame(() => (clearTimeout(hidden), done()));
  });
  const root = location.pathname.replace(/\/c\/[^/]*$/, "").replace(/\/$/, ""); // the path of the app, behind a proxy, too
  // Returns whether the server answers. A proxy in front of it can answer, too, while the server is away.
  const reaches = async () => {
    try {
      const answer = await fetch(`${root}/healthz`, { cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS) });
      return answer.ok && (await answer.json()).status === "ok";
    } catch {
      return false;
    }
  };
  const button = (name, text) => make("button", { type: "button", class: name }, text);
  // Writes into a text box as the keyboard does, so that Gradio learns of it.
  const write = (area, text) => {
    area.value = text;
    area.dispatchEvent(new Event("input", { bubbles: true }));
  };
  // Keeps values over a reload of this tab. A browser may give no storage to a page in a frame.
  const kept = {
    get: (name) => {
      try {
        return JSON.parse(sessionStorage.getItem(name)) ?? undefined;
      } catch {
        return undefined;
      }
    },
    set: (name, value) => {
      try {
        if (value === undefined) sessionStorage.removeItem(name);
        else sessionStorage.setItem(name, JSON.stringify(value));
      } catch {
        // nothing is kept
      }
    },
  };
  // Loads a script that few visits need, once, and returns what it makes.
  const made = {};
  const fetched = (name) => new Promise((done, fail) => {
    const script = make("script", { src: `${root}/assets/${shared.lazy[name]}` });
    script.addEventListener("load", done);
    script.addEventListener("error", () => (script.remove(), fail(new Error(`${name} was not loaded`))));
    document.head.append(script);
  });
  const load = (name) => (made[name] ??= fetched(name).then(() => window.lazy[name](shared), (error) => {
    delete made[name];
    throw error;
  }));
  const box = () => $("#composer textarea");
  // Lets Gradio call the server: `CALLS` in layout.py has the names.
  const call = (name) => document.dispatchEvent(new CustomEvent("gradio-call", { detail: name }));
  // The conversation that the page shows, and the token of a guest, who has no cookies.
  let shown = "", guest = "";
  document.addEventListener("chat-view", ({ detail }) => [shown, guest] = [detail.conversation || "", detail.guest || guest]);
  const conversation = () => shown;
  // Asks a route below /conversations. An error has the server's sentence, and the status of its answer.
  const ask = async (path, { method = "GET", body } = {}) => {
    const address = new URL(`${root}/conversations${path}`, location);
    if (guest) address.searchParams.set("guest", guest);
    const headers = { "accept-language": language, ...(body ? { "content-type": "application/json" } : {}) };
    const answer = await fetch(address, { method, headers, cache: "no-store", body: body && JSON.stringify(body) });
    const value = answer.status === 204 ? {} : await answer.json().catch(() => ({}));
    if (!answer.ok) throw Object.assign(new Error(value.detail || said.chats_failed), { status: answer.status });
    return value;
  };
  // The values of two composers as one.
  const joined = (...values) => ({
    text: values.map((value) => value?.text ?? "").filter((text) => text.trim()).join("\n\n"),
    files: values.flatMap((value) => value?.files ?? []),
  });
  // The name of an attached file.
  const nameOf = ({ orig_name, path }) => orig_name || path.split("/").at(-1);
  // A number of bytes for people.
  const sizeOf = (bytes) => {
    const [unit, many] = bytes < 1e6 ? ["kilobyte", bytes / 1e3] : ["megabyte", bytes / 1e6];
    return many.toLocaleString(language, { style: "unit", unit, maximumFractionDigits: many < 10 ? 1 : 0 });
  };
  const shared = { ...modules, said, language, $, box, when, composes, soft, sends, hint, frame, make, button, write, kept, root, reaches, load, call, conversation, ask, joined, nameOf, sizeOf };
  return shared;
}
