// Draws diagrams with Mermaid, in a frame that loads nothing else. Labels are text, and no diagram changes the settings.
import mermaid from "./{name}?whole";

// The diagram without its own settings, at its beginning and in comments, and without what the frame would not load anyway.
const plain = (source) => source.replace(/^\s*---\s*\n[^]*?\n\s*---\s*(?:\n|$)/, "").replace(/%%\s*\{[^]*?(?:\}\s*%%|$)/g, "").replace(/^\s*%%.*$/gm, "")
  .replace(/\bimg\s*:/gi, "picture:").replace(/<(?=\/?\s*(?!br\b)[a-z])/gi, "&lt;").replace(/url\s*\(/gi, "(");
const settings = {
  startOnLoad: false, securityLevel: "strict", htmlLabels: false, flowchart: { htmlLabels: false }, class: { htmlLabels: false },
  state: { htmlLabels: false }, markdownAutoWrap: false, suppressErrorRendering: true, maxTextSize: 20_000, maxEdges: 300,
  arrowMarkerAbsolute: false, legacyMathML: false, forceLegacyMathML: false, dompurifyConfig: {},
};
let number = 0, last = Promise.resolve();
const drawn = async (source, theme, take) => {
  if (source.length > settings.maxTextSize) throw new Error("The diagram is too long.");
  const wanted = { ...settings, theme };
  const probe = mermaid.mermaidAPI?.defaultConfig ?? {};
  mermaid.initialize({ ...wanted, secure: [...new Set([...Object.keys(probe), ...Object.keys(wanted), "secure", "themeCSS", "themeVariables", "fontFamily", "altFontFamily", "look", "layout"])] });
  const { svg } = await mermaid.render(`drawing-${++number}`, plain(source));
  const holder = document.createElement("div");
  holder.innerHTML = svg;
  document.body.append(holder);
  try {
    return take(holder.querySelector("svg"));
  } finally {
    holder.remove();
  }
};
// One at a time: Mermaid has one set of settings.
window.draw = (...given) => (last = last.then(() => {}, () => {}).then(() => drawn(...given)));
