// The box in which a person's message is edited, in place of the message. There is one.
import { make } from "./draw.js";

export class Editing {
  /**
   * @param {import("./draw.js").Drawing} drawing
   * @param {{textOf?: (turn: string, part?: string) => Promise<string>, fire: (name: string, detail: object) => void,
   *   bring: (element: Element) => void}} options `bring` brings the box into view
   */
  constructor(drawing, { textOf, fire, bring }) {
    this.drawing = drawing;
    this.textOf = textOf;
    this.fire = fire;
    this.bring = bring;
    this.turn = ""; // the turn whose message is edited
    this.own = ""; // the text of the message
    const { labels } = drawing;
    this.area = make("textarea", { "aria-label": labels.editing, rows: 1 });
    this.kept = make("p", { className: "caption" });
    const send = make("button", { type: "submit" }, labels.send), cancel = make("button", { type: "button" }, labels.cancel);
    this.form = make("form", { className: "edit" }, this.area, this.kept, make("div", {}, cancel, send));
    cancel.addEventListener("click", () => this.end());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.fire("edit", { turn: this.turn, text: this.area.value });
    });
  }

  /** @param {string} id */
  async begin(id) {
    const view = this.drawing.views.get(id), article = view?.root.querySelector("article.mine");
    if (!view || !article || this.turn === id) return this.area.focus();
    this.leave();
    this.turn = id;
    const text = view.turn.is_untyped ? "" : await this.textOf?.(id, "message");
    if (this.turn !== id || text === undefined) return;
    this.own = this.area.value = text;
    this.kept.textContent = view.turn.kept ?? "";
    this.area.setAttribute("aria-description", this.kept.textContent);
    article.classList.add("editing");
    article.prepend(this.form);
    this.area.focus();
    this.area.setSelectionRange(text.length, text.length);
    this.bring(this.form);
  }

  /** What was typed, unless it is what the message says. */
  unsent() {
    return this.turn && this.area.value !== this.own ? this.area.value : "";
  }

  /** Close the box of a message that is not shown any more, and tell what was typed. */
  keep() {
    if (this.turn && !this.drawing.views.has(this.turn)) this.leave();
  }

  leave() {
    const text = this.unsent();
    this.end();
    if (text) this.fire("unsent", { text });
  }

  end() {
    this.turn = "";
    this.form.parentElement?.classList.remove("editing");
    this.form.remove();
  }
}
