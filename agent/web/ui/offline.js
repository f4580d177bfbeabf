// Says plainly that the browser is offline, and holds back what could not be sent, so that it stays in the composer. It comes
// before all scripts that send the message.
({ said, box, when, root }) => {
  const note = document.createElement("p");
  note.id = "offline";
  note.setAttribute("role", "status");
  let away = false;
  // A server on the same computer can be reached without a network, so the page asks it.
  const look = async () => {
    const isReached = navigator.onLine || (await fetch(`${root}/healthz`, { cache: "no-store" }).then(() => true, () => false));
    away = !isReached && !navigator.onLine;
    note.textContent = away ? said.offline : "";
  };
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
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.target === box()) holdBack(event);
  }, true);
  document.addEventListener("click", (event) => event.target.closest?.("#composer .submit-button") && holdBack(event), true);
}
