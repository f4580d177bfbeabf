// The models that answer beside the one of the composer. A bar above the composer names them. models.js loads this when a
// visitor compares for the first time, and page.js in a tab that compared before its reload.
import { $, box, hint, kept, load, make, panel, said, shown, when } from "./shared.js";

const MOST = 3;
/** @type {{id: string, label: string}[]} */
let others = kept.get("compare") ?? [];
let isNew = !others.length; // the models go on from the branch that is shown, and not from their own answers
const chips = make("ul");
const more = make("button", { type: "button", class: "more", "aria-haspopup": "dialog", "aria-expanded": "false" }, said.compare_more);
const blind = make("button", { type: "button", class: "blind", title: said.blind_how, "aria-pressed": String(Boolean(kept.get("blind"))) }, said.blind);
blind.addEventListener("click", () => {
  const isBlind = blind.getAttribute("aria-pressed") !== "true";
  blind.setAttribute("aria-pressed", String(isBlind));
  kept.set("blind", isBlind || undefined);
  set(others);
});
const votes = make("button", { type: "button", class: "votes", "aria-haspopup": "dialog" }, said.votes);
votes.addEventListener("click", async () => (await load("order").catch(() => hint(said.chats_failed)))?.tally());
const end = make("button", { type: "button", class: "end", title: said.compare_end, "aria-label": said.compare_end });
const bar = make("section", { id: "compare", "aria-label": said.compare, hidden: true }, make("span", {}, said.compare_beside), chips, more, blind, votes, end);
when("#dock", (dock) => dock.before(bar));

const chip = ({ id, label }) => {
  const name = said.compare_remove.replace("{name}", () => label);
  const remove = make("button", { type: "button", title: name, "aria-label": name });
  remove.addEventListener("click", () => set(others.filter((one) => one.id !== id)));
  return make("li", {}, make("span", { dir: "auto" }, label), remove);
};
function set(next) {
  const focused = document.activeElement;
  const hadFocus = bar.contains(focused);
  others = next.filter(({ id }) => id !== shown.model);
  // A model gets the system prompt that the page shows, and else what the visitor has set.
  shown.compare = others.length ? () => ({
    compare: others.filter(({ id }) => id !== shown.model).map(({ id }) => ({ model: id, system_message: panel.values().system_message ?? "" })),
    each_from_own: !isNew,
    ...(blind.getAttribute("aria-pressed") === "true" && { blind: true }),
  }) : undefined;
  kept.set("compare", others.length ? others : undefined);
  chips.replaceChildren(...others.map(chip));
  more.hidden = others.length >= MOST;
  bar.hidden = !others.length;
  if (hadFocus && !focused?.getClientRects().length) box()?.focus(); // it has gone
}
/** Let the visitor choose a model that answers, too. The list opens at this button. */
export async function add(opener) {
  const models = await load("models").catch(() => hint(said.chats_failed));
  models?.open(opener, shown.model, (id, label) => {
    if (!others.length) isNew = true;
    set([...others.filter((one) => one.id !== id), { id, label }]);
    box()?.focus();
  }, { title: said.compare_with, except: others.map(({ id }) => id) });
}
more.addEventListener("click", () => add(more));
end.addEventListener("click", () => set([]));
document.addEventListener("message-stored", () => (isNew = false));
document.addEventListener("chat-opening", () => (isNew = true));
// The visitor goes on with one answer, and with its model.
document.addEventListener("compare-over", ({ detail }) => {
  const id = detail?.model;
  isNew = true;
  if (others.length && id && id !== shown.model) document.dispatchEvent(new CustomEvent("model-wanted", { detail: { id, label: detail.name } }));
  set([]);
});
document.addEventListener("model-settled", () => others.some(({ id }) => id === shown.model) && set(others));
document.addEventListener("gradio-call", ({ detail }) => detail === "pick" && set(others));
set(others);
