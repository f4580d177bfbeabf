// The numbers of the settings. What cannot be used is put back when the visitor leaves the field, and the page says so. A
// temperature becomes the nearest one of the slider. Its decimal mark is the browser's choice: Firefox goes by the `lang`
// of the page, Chromium by its own language. A field of plain text would lose the arrow keys and the keyboard for numbers.
({ said, when, make, write }) => {
  let before = ""; // the last value that can be used, of the field that has the focus
  const refused = make("p", { class: "refused", role: "alert" });
  const nearest = ({ value, min, max, step }) => {
    const inside = Math.min(Math.max(value, min), max);
    return String(Number((Math.round(inside / step) * step).toFixed(2)));
  };
  const commit = (field) => {
    const { value, validity } = field, isTemperature = field.max !== "";
    if (value !== "" || !isTemperature) {
      if (validity.valid) return void (before = value);
      if (isTemperature && value !== "") return write(field, before = nearest(field));
    }
    write(field, before);
    if (!isTemperature) refused.textContent = said.limit_refused;
  };
  when("#settings", (settings) => {
    const field = ({ target }) => (target.matches("#temperature input[type=number], #max-tokens input") ? target : undefined);
    settings.addEventListener("focusin", (event) => field(event) && (before = event.target.value));
    settings.addEventListener("change", (event) => field(event) && commit(event.target));
    // Gradio uses what is in the field at Enter before it counts as changed.
    settings.addEventListener("keydown", (event) => event.key === "Enter" && field(event) && commit(event.target), true);
    settings.addEventListener("input", (event) => field(event) && refused.replaceChildren());
  });
  when("#max-tokens input", (field) => {
    field.min = 1;
    field.closest(".block").append(refused);
  });
}
