// Attaches a recording that still runs, or that has ended and is not attached, before something else would drop it: a message
// that is sent, the button of the microphone, or the choice of a model that cannot hear.
({ said, $, box, frame, hint }) => {
  const LONGEST_MS = 10000;
  const recorder = "#composer .recording-overlay";
  const isOpen = () => Boolean($(`${recorder} :is(.stop-button, .confirm-button)`));
  const until = async (isSo) => {
    for (const end = Date.now() + LONGEST_MS; !isSo() && Date.now() < end;) await frame();
    return isSo();
  };
  let attaching;
  const attach = async () => {
    $(`${recorder} .stop-button`)?.click();
    if (await until(() => $(`${recorder} .confirm-button`) || !$(recorder))) $(`${recorder} .confirm-button`)?.click();
    const isAttached = await until(() => !$(`${recorder}, #composer .loader`) && $("#composer .thumbnail-item"));
    if (!isAttached) hint(said.recording_open, isOpen);
    return isAttached;
  };
  const once = () => (attaching ??= attach().finally(() => (attaching = undefined)));
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
