// Says plainly that the browser is offline, or for how long the server has not answered. Without a network it holds back
// what could not be sent, so that it stays in the composer; without the server, queue.js keeps it. A Stop and everything
// else that asks the server wait until it can be reached again. It comes before all scripts that send the message.
({ said, $, box, when, make, sends, reaches }) => {
  const RETRY_MS = 1000, STOP = "#composer .input-row > .stop-button";
  const note = make("p", { id: "offline", role: "status" }), counted = make("span", { "aria-hidden": "true" });
  let away = false, next;
  let silent = null; // for how many seconds the server has not answered, while the page reads an answer
  let running, unwanted; // the answer that is being written, and the one that the visitor stopped meanwhile
  const isSilent = () => silent !== null;
  const say = (offline, noAnswer) => {
    if (away || !isSilent()) note.replaceChildren(...(away ? [offline] : []));
    else note.replaceChildren(noAnswer, counted);
  };
  const sayState = () => say(said.offline, said.silent), sayWaits = () => say(said.offline_waits, said.silent_waits);
  document.addEventListener("server-silent", ({ detail: seconds }) => {
    const before = isSilent();
    silent = seconds;
    counted.textContent = `${seconds} s`;
    if (isSilent() === before) return;
    sayState();
    stopLate();
  });
  // A server on the same computer can be reached without a network, so the page asks it, and again until there is one.
  const look = async () => {
    clearTimeout(next);
    const isReached = navigator.onLine || (await reaches());
    away = !isReached && !navigator.onLine;
    sayState();
    if (away) return;
    stopLate();
    if (!navigator.onLine) next = setTimeout(look, RETRY_MS);
  };
  const isOfTimer = (how) => {
    const { trigger_id: trigger } = JSON.parse(how?.body ?? "{}");
    return gradio_config.components.some(({ id, type }) => id === trigger && type === "timer");
  };
  // After an event that could not be sent, Gradio ignores everything until it can load the page again. Events, and what a
  // button of the chat asks of a route, go in the order in which they occurred.
  const isAction = (url, method = "GET") => url.includes("/queue/join") || (method !== "GET" && url.includes("/conversations/"));
  const send = window.fetch.bind(window);
  let last = Promise.resolve(), waiting = 0;
  window.fetch = async (where, how) => {
    if (!isAction(String(where?.url ?? where), how?.method) || (navigator.onLine && !isSilent() && !waiting)) return send(where, how);
    const isMine = (navigator.userActivation?.isActive ?? true) && !isOfTimer(how); // of the visitor
    const sayMine = () => isMine && sayWaits();
    const earlier = last;
    let sent;
    last = new Promise((then) => (sent = then));
    waiting++;
    try {
      sayMine();
      await earlier;
      while (!(await reaches())) {
        sayMine();
        await new Promise((then) => setTimeout(then, RETRY_MS));
      }
      return await send(where, how);
    } finally {
      waiting--;
      sent();
    }
  };
  // A browser can be online a moment before the server can be reached, and Gradio would lose a Stop that fails.
  const stopLate = async () => {
    if (!unwanted || away || isSilent()) return;
    if (!(await reaches())) return void setTimeout(stopLate, RETRY_MS);
    const button = $(STOP), answer = unwanted;
    unwanted = undefined;
    button?.removeAttribute("aria-disabled");
    if (answer && answer === running) button?.click();
  };
  document.addEventListener("chat-view", ({ detail }) => (running = detail.live));
  when("#dock", (dock) => {
    dock.before(note);
    look();
  });
  for (const change of ["online", "offline"]) addEventListener(change, look);

  const holdBack = (event) => {
    if (!away) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    note.textContent = said.offline_kept;
    box()?.focus();
  };
  addEventListener("keydown", (event) => {
    if (sends(event) && event.target === box()) holdBack(event);
  }, true);
  document.addEventListener("click", (event) => event.target.closest?.("#composer .submit-button") && holdBack(event), true);
  // Escape clicks the button, too.
  document.addEventListener("click", (event) => {
    const button = (away || isSilent()) && event.target.closest?.(STOP);
    if (!button) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    unwanted = running; // none while a message is being sent
    if (!unwanted) return;
    button.setAttribute("aria-disabled", "true");
    sayWaits();
  }, true);
}
