// The box in which a person's message is edited, in place of its text. There is one.
import { composes, make, sends } from "./elements.js";

const SLOW_MS = 300;

export class Editing {
  /**
   * @param {import("./draw.js").Drawing} drawing
   * @param {{textOf: (turn: string, part: string) => Promise<string>, fire: (name: string, detail: object) => void,
   *   fail: (text: string) => void, bring: (element: Element) => void,
   *   release: () => void}} options `bring` brings the box into view, where it stays until `release`
   */
  constructor(drawing, { textOf, fire, fail, bring, release }) {
    this.drawing = drawing;
    this.textOf = textOf;
    this.fire = fire;
    this.fail = fail;
    this.bring = bring;
    this.release = release;
    this.turn = ""; // the turn whose message is edited
    /** @type {string | undefined} The text of the message, once it is here. */
    this.own = undefined;
    this.begun = 0; // the times that a box was opened or closed
    this.isSent = false; // until it is accepted or refused
    /** @type {Element | null} what had the focus before */
    this.opener = null;
    const { labels } = drawing;
    this.area = make("textarea", { "aria-label": labels.editing, rows: 1, dir: "auto" });
    this.kept = make("p", { className: "caption", role: "status" });
    const send = make("button", { type: "submit" }, labels.send), cancel = make("button", { type: "button" }, labels.cancel);
    this.form = make("form", { className: "edit" }, this.area, make("div", {}, this.kept, cancel, send));
    cancel.addEventListener("click", () => this.cancel());
    this.form.addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      this.send();
    });
    this.form.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (composes(event)) return;
      const isSent = event.target === this.area && sends(event);
      if (!isSent && event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      isSent ? this.send() : this.cancel();
    });
  }

  /** Edit the message of this turn. What was typed into another one is told. @param {string} id */
  async begin(id) {
    const view = this.drawing.views.get(id);
    if (!view?.asked.isConnected) return;
    if (this.turn === id) return this.area.focus();
    this.opener = document.activeElement;
    this.leave();
    const begun = (this.begun += 1), { area, kept, form, drawing: { labels } } = this;
    this.turn = id;
    area.value = kept.textContent = "";
    area.readOnly = false;
    area.hidden = form.hidden = true;
    view.asked.before(form);
    const slow = setTimeout(() => {
      form.hidden = false;
      kept.textContent = labels.loading;
      this.bring(form);
    }, SLOW_MS);
    let text = "", failure = "";
    try {
      if (!view.turn.is_untyped) text = await this.textOf(id, "message");
    } catch (error) {
      failure = /** @type {Error} */ (error).message;
    }
    clearTimeout(slow);
    if (this.begun !== begun) return;
    if (failure) {
      this.cancel();
      return this.fail(failure);
    }
    this.own = area.value = text;
    kept.textContent = view.turn.kept ?? "";
    area.setAttribute("aria-description", kept.textContent);
    area.hidden = form.hidden = false;
    area.focus({ preventScroll: true });
    area.setSelectionRange(text.length, text.length);
    this.bring(form);
  }

  send() {
    if (this.own === undefined || this.isSent) return;
    this.isSent = this.area.readOnly = true;
    this.fire("edit", { turn: this.turn, text: this.area.value });
  }

  cancel() {
    const view = this.drawing.views.get(this.turn), { opener } = this;
    this.end();
    const isKept = opener?.isConnected && opener !== document.body;
    const next = isKept ? opener : view?.asked.querySelector('[data-action="edit"]');
    /** @type {HTMLElement | null | undefined} */ (next)?.focus({ preventScroll: true });
  }

  /** The server has accepted what was sent, or refused it: then the box stays open. @param {boolean} isAccepted */
  edited(isAccepted) {
    if (!this.isSent) return;
    if (isAccepted) return this.end();
    this.isSent = this.area.readOnly = false;
    this.keep();
  }

  /** What was typed, unless it is what the message says. */
  unsent() {
    return this.own !== undefined && this.area.value !== this.own ? this.area.value : "";
  }

  /** Close the box of a message that is not shown any more, and tell what was typed. */
  keep() {
    if (this.turn && !this.isSent && !this.drawing.views.has(this.turn)) this.leave();
  }

  leave() {
    const text = this.unsent();
    this.end();
    if (text) this.fire("unsent", { text });
  }

  end() {
    this.begun += 1;
    this.turn = "";
    this.own = undefined;
    this.isSent = false;
    if (!this.form.parentElement) return;
    this.form.remove();
    this.release();
  }
}
