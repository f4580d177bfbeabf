// Says plainly that the browser is offline, and holds back what could not be sent, so that it stays in the composer. It is
// the first script, so that no other one sends the message.
({ said, box, when }) => {
  const note = document.createElement("p");
  note.id = "offline";
  note.setAttribute("role", "status");
  const tell = () => (note.textContent = navigator.onLine ? "" : said.offline);
  when("#dock", (dock) => {
    dock.before(note);
    tell();
  });
  for (const change of ["online", "offline"]) addEventListener(change, tell);

  const holdBack = (event) => {
    if (navigator.onLine) return;
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
