// Makes elements.

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
