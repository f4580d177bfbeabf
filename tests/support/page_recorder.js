// Records what happens in a page, with the milliseconds since it was loaded, so that a rare failure of a test can be
// explained: clicks, toasts, views of the server, changes of the network, and requests for events and answers. The report
// of a failed test has the newest of them.
(() => {
  const MOST = 60, recorded = (window.recorded = []);
  const record = (...words) => {
    recorded.push(`${Math.round(performance.now())} ms: ${words.join(" ")}`);
    if (recorded.length > MOST) recorded.shift();
  };
  for (const type of ["mousedown", "mouseup", "click"]) {
    addEventListener(type, ({ target, isTrusted }) => {
      if (!isTrusted || !target.tagName) return;
      const name = target.getAttribute("aria-label") ?? target.title ?? "";
      record(type, target.tagName.toLowerCase(), target.className, JSON.stringify((name || target.textContent).trim().slice(0, 40)));
    }, true);
  }
  for (const change of ["online", "offline"]) addEventListener(change, () => record(change));
  addEventListener("chat-view", ({ detail: { live, turns, missing } }) => {
    record("view:", turns?.length ?? "no", "turns", live ? `live ${live.split("/")[1]}` : "", missing ?? "");
  }, true);
  new MutationObserver((changes) => {
    for (const node of changes.flatMap(({ addedNodes }) => [...addedNodes])) {
      const toast = node.matches?.(".toast-body") ? node : node.querySelector?.(".toast-body");
      if (toast) record("toast:", toast.textContent.trim());
    }
  }).observe(document, { childList: true, subtree: true });
  const send = window.fetch;
  window.fetch = async (where, how) => {
    const address = String(where?.url ?? where), path = /(run\/\w+|runs\/\w+|healthz)/.exec(address)?.[1];
    if (!path) return send(where, how);
    record(path, path.startsWith("run/") ? `event ${JSON.parse(how.body).fn_index}` : "");
    try {
      const answer = await send(where, how);
      record(path, answer.status);
      return answer;
    } catch (error) {
      record(path, error);
      throw error;
    }
  };
})();
