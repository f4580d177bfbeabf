// Says above the composer that a message which was taken back is still stored, and shows it again. Otherwise a chat whose
// only message was taken back would look as if it were lost.
({ said, box, when, make, button }) => {
  let id = "";
  const again = button("", said.hidden_show);
  const note = make("p", { id: "hidden", role: "status" });
  again.addEventListener("click", async () => {
    box()?.focus(); // the button goes
    if (await window.live.actions.version(id)) window.composer.redone();
  });
  document.addEventListener("chat-view", ({ detail }) => {
    if (detail.hidden === id) return;
    id = detail.hidden;
    note.replaceChildren(...(id ? [said.hidden, " ", again] : []));
  });
  when("#dock", (dock) => dock.before(note));
}
