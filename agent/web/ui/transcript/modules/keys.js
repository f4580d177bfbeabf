// What the keys of a text box mean.

/** Whether an input method uses the key. Safari ends the composition before the Enter that did so: only the code tells then. @param {KeyboardEvent} event */
export const composes = ({ isComposing, keyCode }) => isComposing || keyCode === 229;

/** A keyboard on the screen has no Shift + Enter, so its Enter begins a new line. */
export const soft = matchMedia("(pointer: coarse)");

/** Whether the key sends what is typed. @param {KeyboardEvent} event */
export const sends = (event) => event.key === "Enter" && !event.shiftKey && (!soft.matches || event.ctrlKey || event.metaKey);
