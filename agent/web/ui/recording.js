// Attaches a recording that still runs, or that has ended and is not attached, before something else would drop it: a message
// that is sent, the button of the microphone, or the choice of a model that cannot hear. The recorder is the last row of the
// composer, with a button that drops what was recorded.
({ said, $, box, when, soft, frame, hint, button }) => {
  const LONGEST_MS = 10000;
  const recorder = "#composer .recording-overlay";
  const isOpen = () => Boolean($(`${recorder} :is(.stop-button, .confirm-button)`));
  const until = async (isSo) => {
    for (const end = Date.now() + LONGEST_MS; !isSo() && Date.now() < end;) await frame();
    return isSo();
  };
  let attaching, stopped; // the button that has stopped the recording: Gradio would drop it at a second click
  const end = () => {
    const stop = $(`${recorder} .stop-button`);
    if (stop !== stopped) stop?.click();
    return until(() => $(`${recorder} .confirm-button`) || !$(recorder));
  };
  const attach = async () => {
    const count = () => document.querySelectorAll("#composer .thumbnail-item").length, before = count();
    await end();
    $(`${recorder} .confirm-button`)?.click();
    const isAttached = await until(() => !$(`${recorder}, #composer .loader`)) && count() > before;
    if (!isAttached) hint(said.recording_open, isOpen);
    return isAttached;
  };
  const once = () => (attaching ??= attach().finally(() => (attaching = undefined)));
  const cancel = button("recorder-cancel", "");
  cancel.title = said.camera_cancel;
  cancel.setAttribute("aria-label", said.camera_cancel);
  cancel.addEventListener("click", async () => {
    await end();
    ($(`${recorder} .cancel-button`) ?? ($(recorder) && $("#composer .microphone-button")))?.click();
    box()?.focus();
  });
  when("#composer .input-row", (row) => row.append(cancel));
  document.addEventListener("click", (event) => {
    const stop = event.target.closest?.(`${recorder} .stop-button`);
    if (stop && stop === stopped) event.stopPropagation();
    else if (stop) stopped = stop;
    if (event.target.closest?.(`${recorder} .record-button`) && !soft.matches) box()?.focus(); // its button goes
  }, true);
  document.addEventListener("click", (event) => {
    if (!event.target.closest?.("#composer .microphone-button") || !isOpen()) return;
    event.stopPropagation(); // Gradio would close the recorder, with what was recorded
    event.preventDefault();
    once();
  }, true);
  window.recording = {
    // Returns a promise if there is a recording: whether it is attached now.
    attach: () => (attaching || isOpen() ? once() : undefined),
    // Returns true if a recording is attached first, and the message is sent after that.
    sends: () => {
      if (attaching) return true;
      if (!isOpen()) return false;
      once().then((isAttached) => {
        const send = $("#composer .submit-button");
        if (isAttached && send) send.click();
        else if (isAttached) window.queue?.add();
        box()?.focus();
      });
      return true;
    },
  };
}
