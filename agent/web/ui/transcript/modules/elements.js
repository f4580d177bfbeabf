// Makes elements, and says what the keys of a text box mean.

/**
 * An element with these properties, attributes (names with a dash, `role`) and children.
 * @param {string} tag
 * @param {Record<string, any>} given
 * @param {(Node | string)[]} children
 * @returns {any}
 */
export function make(tag, given = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (name in element) /** @type {any} */ (element)[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** @param {string} action @param {string} label @param {Record<string, any>} given */
export const button = (action, label, given = {}) =>
  make("button", { type: "button", className: "icon", title: label, "aria-label": label, "data-action": action, ...given });

/** Load a style sheet of this folder, once in a page. @param {string} name */
export function styled(name) {
  const href = new URL(name, import.meta.url).href;
  if ([...document.styleSheets].some((sheet) => sheet.href === href)) return Promise.resolve();
  const link = make("link", { rel: "stylesheet", href });
  return new Promise((loaded) => {
    link.onload = link.onerror = () => loaded(undefined);
    document.head.append(link);
  });
}

/** Whether an input method uses the key. Safari ends the composition before the Enter that did so: only the code tells then. @param {KeyboardEvent} event */
export const composes = ({ isComposing, keyCode }) => isComposing || keyCode === 229;

/** A keyboard on the screen has no Shift + Enter, so its Enter begins a new line. */
export const soft = matchMedia("(pointer: coarse)");

/** Whether the key sends what is typed. @param {KeyboardEvent} event */
export const sends = (event) => event.key === "Enter" && !event.shiftKey && (!soft.matches || event.ctrlKey || event.metaKey);
