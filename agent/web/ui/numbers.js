// The numbers of the settings. What cannot be used is put back when the visitor leaves the field, and the page says so. A
// temperature becomes the nearest one of the slider. Its decimal mark is the browser's choice: Firefox goes by the `lang`
// of the page, Chromium by its own language. A field of plain text would lose the arrow keys and the keyboard for numbers.
({ said, language, when, make, write }) => {
  let before = ""; // the last value that can be used, of the field that has the focus
  let isEmptied = false; // by the visitor. Gradio writes 0 into an empty temperature, without an event.
  let wanted; // the limit that was typed last, until the server has lowered it or another one is typed
  const refused = make("p", { class: "refused", role: "alert" });
  const nearest = ({ value, min, max, step }) => {
    const inside = Math.min(Math.max(value, min), max);
    return String(Number((Math.round(inside / step) * step).toFixed(2)));
  };
  const commit = (field) => {
    const { value, validity } = field, isTemperature = field.max !== "";
    if (isTemperature && (value === "" || (isEmptied && Number(value) === 0))) return write(field, before);
    if (validity.valid) {
      before = value;
      if (!isTemperature && value !== "") wanted = Number(value);
    } else if (isTemperature) write(field, before = nearest(field));
    else {
      write(field, before);
      refused.textContent = said.limit_refused;
    }
  };
  when("#settings", (settings) => {
    const field = ({ target }) => (target.matches("#temperature input[type=number], #max-tokens input") ? target : undefined);
    settings.addEventListener("focusin", (event) => field(event) && ([before, isEmptied] = [event.target.value, false]));
    settings.addEventListener("change", (event) => field(event) && commit(event.target));
    // Gradio uses what is in the field at Enter before it counts as changed.
    settings.addEventListener("keydown", (event) => event.key === "Enter" && field(event) && commit(event.target), true);
    settings.addEventListener("input", (event) => {
      if (!field(event)) return;
      isEmptied = event.target.value === "";
      wanted = undefined;
      refused.replaceChildren();
    });
    // A window that loses the focus brings no change, and Gradio would write 0. This comes before Gradio's own listener.
    settings.addEventListener("blur", (event) => field(event)?.max && isEmptied && commit(event.target), true);
  });
  when("#max-tokens input", (field) => {
    field.min = 1;
    field.closest(".block").append(refused);
    window.numbers = {
      // Gets the limit after the server has looked at it. A higher one than the model can write was lowered.
      used: (limit) => {
        if (limit === null || !(limit < wanted)) return;
        wanted = undefined;
        if (field === document.activeElement) before = String(limit);
        refused.textContent = said.limit_lowered.replace("{count}", limit.toLocaleString(language));
      },
    };
  });
}
