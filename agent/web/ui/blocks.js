// Buttons of tables and code in answers: copy a table as Markdown or CSV, see the language of code, and save code as a
// file. They are added once the chat is at rest, and only to blocks that have none, so a growing answer costs nothing.
({ said, $, hint, frame }) => {
  const SAME = "c cpp cs css csv dart diff go html ini java js json jsx lua md php ps1 py r rb rs scala sh sql svg swift tex toml ts tsx vue xml yaml yml";
  const OTHER = {
    bash: "sh", "c#": "cs", "c++": "cpp", csharp: "cs", elixir: "ex", haskell: "hs", javascript: "js", julia: "jl", jsonc: "json",
    kotlin: "kt", latex: "tex", markdown: "md", perl: "pl", powershell: "ps1", python: "py", ruby: "rb", rust: "rs", shell: "sh",
    typescript: "ts", zsh: "sh",
  };
  const WHOLE = { dockerfile: "Dockerfile", makefile: "Makefile" };
  // Not every word that a model writes there: the computer of the visitor might run the file because of its ending.
  const fileName = (language) => {
    const name = language.toLowerCase();
    return WHOLE[name] ?? `code.${OTHER[name] ?? (SAME.split(" ").includes(name) ? name : "txt")}`;
  };

  const MARKS = { STRONG: "**", B: "**", EM: "*", I: "*", DEL: "~~", S: "~~", CODE: "`" };
  // The text of a cell, as Markdown or plain.
  const textOf = (node, markdown) => {
    if (node.nodeType === Node.TEXT_NODE) return node.data;
    if (node.nodeType !== Node.ELEMENT_NODE) return "";
    if (node.matches(".katex")) {
      const tex = ($("annotation", node) ?? node).textContent.trim();
      return markdown ? `$${tex}$` : tex;
    }
    if (node.matches(".citationchip")) return "";
    if (node.matches("br")) return markdown ? "<br>" : "\n";
    if (node.matches("img")) return markdown ? `![${node.alt}](${node.getAttribute("src")})` : node.alt;
    const text = [...node.childNodes].map((child) => textOf(child, markdown)).join("");
    if (!markdown) return text;
    if (node.matches("a[href]")) return `[${text}](${node.getAttribute("href")})`;
    const mark = MARKS[node.tagName] ?? "";
    return mark + text + mark;
  };
  const cells = (table, markdown) =>
    [...table.rows].map((row) => [...row.cells].map((cell) => textOf(cell, markdown).trim()));
  const asMarkdown = (table) => {
    const rows = cells(table, true).map((row) => row.map((cell) => cell.replace(/\s+/g, " ").replaceAll("|", "\\|")));
    const lines = { left: ":--", center: ":-:", right: "--:" };
    rows.splice(1, 0, [...table.rows[0].cells].map((cell) => lines[cell.getAttribute("align")] ?? "---"));
    return rows.map((row) => `| ${row.join(" | ")} |\n`).join("");
  };
  // A spreadsheet would run a cell that begins like a formula. Some also split cells at semicolons, tabs and line breaks,
  // and drop quotation marks there. A number may begin with a sign.
  const FORMULA = /^[\s\p{C}"]*[=@+\-＝＠＋－]/u, NUMBER = /^[+-][\d.,\s\p{Sc}]*(e[+-]?\d+)?%?$/iu;
  const inert = (text) => text.split(/([;\t\r\n])/)
    .map((part) => (FORMULA.test(part) && !NUMBER.test(part.trim()) ? `'${part}` : part)).join("");
  const field = (text) => (/[",;\t\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const asCsv = (table) => cells(table, false).map((row) => `${row.map((cell) => field(inert(cell))).join(",")}\r\n`).join("");

  const button = (name, label, act) => {
    const made = Object.assign(document.createElement("button"), { type: "button", className: name, title: label });
    made.setAttribute("aria-label", label);
    made.addEventListener("click", () => act(made));
    return made;
  };
  const copy = (text) => async (made) => {
    try {
      await navigator.clipboard.writeText(text());
    } catch {
      return hint(said.copy_failed);
    }
    hint(said.copied);
    made.classList.add("done");
    setTimeout(() => made.classList.remove("done"), 1500);
  };
  const save = (name, text) => {
    const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(new Blob([text], { type: "text/plain" })), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  };

  // In a table the buttons are its caption: Gradio removes a table with all that is in it, and leaves what is beside it.
  const addToTable = (table) => {
    const tools = table.createCaption();
    tools.className = "tools";
    tools.append(
      button("markdown", said.copy_markdown, copy(() => asMarkdown(table))),
      button("csv", said.copy_csv, copy(() => asCsv(table))),
    );
  };
  const addToCode = (wrap) => {
    const code = $("code", wrap), copies = $(".copy_code_button", wrap);
    const language = /\blanguage-(\S+)/.exec(code.className)?.[1] ?? "";
    const tools = Object.assign(document.createElement("div"), { className: "tools" });
    const file = wrap.closest(".user") && /^(.*\S):$/.exec(wrap.previousElementSibling?.textContent.trim())?.[1];
    const name = file || fileName(language); // of an attached text, below its name
    const label = document.createElement("span");
    label.dataset.language = language;
    tools.append(
      label,
      button("save", said.save_code.replace("{name}", () => name), () => save(name, code.textContent)),
    );
    wrap.prepend(tools);
    copies?.setAttribute("aria-label", said.copy_code);
    if (copies) copies.title = said.copy_code;
  };
  // The first chatbot has only finished texts. page.js tells when it has changed. A frame adds to a few blocks, from the
  // end, where the reader is.
  const EACH = 5;
  const TABLES = "#chat > .block .prose table:not(:has(> .tools))";
  const CODE = "#chat > .block .prose .code_wrap:has(code):not(:has(> .tools), .thought-group *)";
  let adding = false;
  document.addEventListener("chat-mended", async () => {
    if (adding) return;
    adding = true;
    for (;;) {
      const { running, ending } = $("#chat").dataset;
      if (running !== undefined && ending === undefined) break; // it does not change then
      const blocks = [...document.querySelectorAll(`${TABLES}, ${CODE}`)].slice(-EACH);
      if (!blocks.length) break;
      for (const block of blocks) if (block.matches("table")) addToTable(block); else addToCode(block);
      await frame();
    }
    adding = false;
  });
}
