// Stands in for Mermaid, which Gradio runs in the page itself, where a diagram could load pictures and style the page.
//
// Mermaid draws in a frame that can load nothing but scripts of this folder and run no others. The page gets a new drawing:
// of the figure's elements, only those that draw, with the attributes that they need and the colours as the frame shows them.
const SVG = "http://www.w3.org/2000/svg";
const ELEMENTS = "svg g path rect circle ellipse line polyline polygon text tspan defs marker title desc";
const PLACES = "d x y x1 y1 x2 y2 cx cy r rx ry dx dy width height points transform viewBox preserveAspectRatio";
const MARKERS = "refX refY markerWidth markerHeight markerUnits orient";
const STYLES = "fill fill-opacity stroke stroke-width stroke-opacity stroke-dasharray stroke-linecap stroke-linejoin opacity font-family font-size font-style font-weight text-anchor dominant-baseline visibility display";
const ENDS = "marker-start marker-mid marker-end";
const words = (text) => text.split(" ");
const MOST = 5000;

const policy = (folder) =>
  `default-src 'none'; script-src ${folder}; style-src ${folder} 'unsafe-inline'; base-uri 'none'; form-action 'none'`;
let theme = "default", number = 0, opened;
const frame = () => (opened ??= new Promise((done, fail) => {
  const folder = new URL(".", import.meta.url).href, made = document.createElement("iframe");
  made.setAttribute("aria-hidden", "true");
  made.tabIndex = -1;
  made.title = "Mermaid";
  made.style.cssText = "position: fixed; left: -4000px; top: 0; width: 1200px; height: 800px; visibility: hidden; border: 0;";
  made.srcdoc = `<!doctype html><meta http-equiv="Content-Security-Policy" content="${policy(folder)}">`
    + `<body><script type="module" src="${folder}{frame}"></script>`;
  made.addEventListener("load", () => {
    if (made.contentWindow.draw) return done(made.contentWindow);
    opened = undefined;
    made.remove();
    fail(new Error("Mermaid was not loaded"));
  });
  document.body.append(made);
}));

// Returns a copy of the drawing for the page. `names` has the ids that others refer to.
const copied = (one, names, left) => {
  if (one.namespaceURI !== SVG || !words(ELEMENTS).includes(one.localName) || left.count-- <= 0) return undefined;
  const made = document.createElementNS(SVG, one.localName), style = one.ownerDocument.defaultView.getComputedStyle(one);
  for (const name of words(PLACES + (one.localName === "marker" ? ` ${MARKERS}` : ""))) {
    const value = one.getAttribute(name);
    if (value !== null && !/[^\w\s.,%()+-]/.test(value)) made.setAttribute(name, value);
  }
  for (const name of words(STYLES)) {
    const value = style.getPropertyValue(name);
    if (value && !/[\\@]|\w\(/.test(value.replace(/\b(?:rgb|rgba|hsl|hsla|color)\(/g, ""))) made.setAttribute(name, value);
  }
  for (const name of words(ENDS)) {
    const named = /^url\("?#([^"()]+)"?\)$/.exec(style.getPropertyValue(name))?.[1];
    if (named !== undefined && names.has(named)) made.setAttribute(name, `url(#${names.get(named)})`);
  }
  if (one.localName === "marker" && names.has(one.id)) made.id = names.get(one.id);
  for (const child of one.childNodes) {
    if (child.nodeType === Node.TEXT_NODE) made.append(child.data);
    else if (child.nodeType === Node.ELEMENT_NODE) made.append(...[copied(child, names, left)].filter(Boolean));
  }
  return made;
};
const draw = async (source) => {
  const { draw: drawn } = await frame();
  return drawn(source, theme, (svg) => {
    const mine = `diagram-${++number}`;
    const names = new Map([...svg.querySelectorAll("marker[id]")].map((one, at) => [one.id, `${mine}-${at}`]));
    const made = copied(svg, names, { count: MOST });
    const { width } = svg.viewBox.baseVal;
    made.setAttribute("width", "100%");
    made.removeAttribute("height");
    if (width) made.style.maxWidth = `${width}px`;
    made.setAttribute("role", "img");
    return made;
  });
};
const run = async ({ nodes }) => {
  for (const node of nodes) {
    const source = node.textContent;
    node.setAttribute("data-processed", "true");
    try {
      node.replaceChildren(await draw(source));
    } catch {
      const code = document.createElement("pre");
      code.textContent = source;
      node.replaceChildren(code);
    }
  }
};
export default { initialize: (config) => (theme = config.theme), run };
