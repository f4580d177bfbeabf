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

/** Load a style sheet, once in a page. @param {string} href */
export function styled(href) {
  if ([...document.styleSheets].some((sheet) => sheet.href === href)) return Promise.resolve();
  const link = make("link", { rel: "stylesheet", href });
  return new Promise((loaded) => {
    link.onload = link.onerror = () => loaded(undefined);
    document.head.append(link);
  });
}

/** @type {Map<string, number>} */
const failures = new Map();
/** Load a module that few visits need, or nothing without a network. A browser asks again for what was not loaded by another address only. @param {string} address */
export const imported = (address) => import(`${address}#${failures.get(address) ?? 0}`)
  .catch(() => void failures.set(address, (failures.get(address) ?? 0) + 1));

/** Whether an input method uses the key. Safari ends the composition before the Enter that did so: only the code tells then. @param {KeyboardEvent} event */
export const composes = ({ isComposing, keyCode }) => isComposing || keyCode === 229;

/** A keyboard on the screen has no Shift + Enter, so its Enter begins a new line. */
export const isSoft = () => matchMedia("(pointer: coarse)").matches;

/** Whether the key sends what is typed. @param {KeyboardEvent} event */
export const sends = (event) => event.key === "Enter" && !event.shiftKey && (!isSoft() || event.ctrlKey || event.metaKey);
