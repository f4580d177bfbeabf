// The prompts of MCP servers, in the list at "/": prompts.js loads this when "/" is typed. A prompt with arguments asks for
// them in a dialog. Its text fills the composer and is never sent by itself. It takes the place of what was typed to find it
// alone, and comes to nothing when the dialog was closed, another prompt was picked or another chat opened meanwhile.
import { request } from "./network.js";
import { $, box, button, hint, make, said } from "./shared.js";

const state = make("p", { role: "status" }), fields = make("div", { class: "fields" });
const fill = make("button", { class: "fill" }, said.prompt_fill), cancel = button("cancel", said.camera_cancel);
const form = make("form", {}, fields, state, make("div", { class: "actions" }, cancel, fill));
const dialog = make("dialog", { id: "server-prompt", "aria-labelledby": "server-prompt-title" }, make("h2", { id: "server-prompt-title", dir: "auto" }), form);
let wish = 0, done = (/** @type {Record<string, string> | undefined} */ _values) => undefined;

/** The prompts of all servers, as the list at "/" shows them. */
export const list = async () => (await request("/prompts")).map((one) => ({ ...one, text: `${one.server} · ${one.description}` }));

/** Fills the composer with a prompt by `write`, after its arguments were asked for. */
export const use = async ({ server, name, arguments: wanted }, write) => {
  const mine = ++wish, held = box().value;
  const get = (values) => request("/prompts", { method: "POST", body: { server, name, arguments: values } });
  const put = ({ text }) => {
    const typed = box().value, rest = typed.startsWith(held) ? typed.slice(held.length) : typed;
    write({ text: rest.trim() ? `${text}\n\n${rest.trimStart()}` : text });
  };
  if (!wanted.length) return get({}).then((got) => mine === wish && put(got), (error) => mine === wish && hint(error.message));
  $("h2", dialog).textContent = name;
  fields.replaceChildren(...wanted.map(({ name, description, required }) => {
    const input = make("input", { name, dir: "auto", autocomplete: "off" });
    input.required = required;
    return make("label", {}, make("span", { dir: "auto" }, name), input, ...(description ? [make("small", { dir: "auto" }, description)] : []));
  }));
  state.textContent = "";
  fill.disabled = false;
  document.body.append(dialog);
  dialog.showModal();
  done = async (values) => {
    fill.disabled = true;
    state.textContent = "";
    const got = await get(values).catch(({ message }) => ({ message }));
    if (mine !== wish || !dialog.open) return;
    fill.disabled = false;
    if ("message" in got) return void (state.textContent = got.message);
    dialog.close();
    put(got);
  };
};
form.addEventListener("submit", (event) => {
  event.preventDefault();
  const given = [...fields.querySelectorAll("input")].filter(({ value }) => value.trim());
  done(Object.fromEntries(given.map(({ name, value }) => [name, value])));
});
cancel.addEventListener("click", () => dialog.close());
dialog.addEventListener("close", () => dialog.open || dialog.remove());
document.addEventListener("chat-opening", () => {
  wish += 1;
  dialog.close();
});
