// The numbers of sources in answers: pointing at one, or reaching it with the keyboard, shows the source and the cited
// passage. A number of a web page is a link. One of a document opens the passage in the document, and so does its title
// in the list below the answer. If the document is gone, the passage is shown in the list.
({ said, $, make, when, hint, load, conversation, ask }) => {
  const MARK = /<(a|button) class="citationchip of-\d+-\d+"[^<>]*>\d+<\/\1>/g;
  const LINGER_MS = 150; // so that the pointer can cross a gap
  // The text of an answer as the model wrote it, without the numbers.
  const unmarked = (text) => (text.includes("citationchip") ? text.replace(MARK, "") : text);

  // The list of an answer follows its texts.
  const listOf = (chip) => [...document.querySelectorAll("#chat .citationlist")].find((list) =>
    chip.compareDocumentPosition(list) & Node.DOCUMENT_POSITION_FOLLOWING);
  const itemOf = (chip) => {
    const [, number, passage] = /\bof-(\d+)-(\d+)/.exec(chip.className) ?? [];
    const item = number && listOf(chip)?.querySelector(`li[value="${number}"]`);
    return item ? { item, number, quote: item.querySelectorAll("q")[passage - 1]?.textContent ?? "" } : {};
  };
  const titleOf = (item) => $("bdi", item).textContent, placeOf = (item) => $("span", item)?.textContent ?? "";
  const nameOf = ({ number, item }) =>
    said.source.replace("{number}", number).replace("{title}", () => [titleOf(item), placeOf(item)].filter(Boolean).join(", "));
  // Names the numbers.
  const name = () => {
    for (const chip of document.querySelectorAll("#chat .citationchip:not([aria-label])")) {
      const found = itemOf(chip);
      if (found.item) chip.setAttribute("aria-label", nameOf(found));
    }
  };

  const card = make("div", { id: "source", role: "tooltip", popover: "manual" });
  const title = make("b", { dir: "auto" }), place = make("span"), quote = make("q", { dir: "auto" });
  card.append(title, place, quote);
  when("main", (main) => main.append(card));
  let shown, leaving;
  const redraws = new MutationObserver(() => shown.isConnected || hide()); // Gradio draws an answer again, with a new number
  const hide = () => {
    clearTimeout(leaving);
    redraws.disconnect();
    shown?.removeAttribute("aria-describedby");
    shown = undefined;
    if (card.matches(":popover-open")) card.hidePopover();
  };
  const show = (chip) => {
    clearTimeout(leaving);
    if (shown === chip) return;
    hide();
    const found = itemOf(chip);
    if (!found.item) return;
    shown = chip;
    title.textContent = titleOf(found.item);
    place.textContent = placeOf(found.item);
    quote.textContent = found.quote;
    quote.hidden = !found.quote;
    chip.setAttribute("aria-describedby", "source");
    card.showPopover();
    redraws.observe($("#chat"), { childList: true, subtree: true });
    const { left, top, bottom } = chip.getBoundingClientRect(), { offsetWidth: width, offsetHeight: height } = card;
    card.style.left = `${Math.max(8, Math.min(left, innerWidth - width - 8))}px`;
    card.style.top = `${bottom + height + 8 < innerHeight ? bottom + 4 : Math.max(8, top - height - 4)}px`;
  };
  const showInList = (item) => {
    item.closest("details").open = true;
    item.tabIndex = -1;
    item.focus({ preventScroll: true });
    item.scrollIntoView({ block: "nearest" });
  };
  const OPENING_MS = 400; // a page is drawn within this time, if the server is not busy
  let opening = false;
  const open = async (item, passage, opener) => {
    if (opening) return;
    opening = true;
    const cited = titleOf(item), page = Number(/\bpage-(\d+)\b/.exec(item.className)?.[1]) || null;
    const slow = setTimeout(() => hint(said.passage_opening.replace("{name}", () => cited)), OPENING_MS);
    const place = [opener.className, item.value]; // Gradio can draw the answer again
    const again = () => [...document.querySelectorAll("#chat .citationchip, #chat .citationlist li > button")]
      .find((one) => one.className === place[0] && (one.className || one.parentElement.value === place[1]));
    try {
      const [found, show] = await Promise.all([
        ask(`/${conversation()}/passage`, { method: "POST", body: { document: cited, page, passage } }),
        load("viewer"),
      ]);
      if (!document.querySelector("dialog[open]")) show.passage(found, { opener, again });
    } catch (error) {
      hint(error.status ? error.message : said.chats_failed);
      if (item.isConnected) showInList(item);
    }
    clearTimeout(slow);
    opening = false;
  };
  const leave = () => {
    clearTimeout(leaving);
    leaving = setTimeout(hide, LINGER_MS);
  };
  const chipAt = ({ target }) => target.closest?.("#chat .citationchip");
  const isCard = ({ target }) => target === card || card.contains(target);
  when("#chat", (chat) => {
    document.addEventListener("pointerover", (event) => {
      const chip = event.pointerType === "touch" ? undefined : chipAt(event);
      if (chip) show(chip);
      else if (isCard(event)) clearTimeout(leaving);
      else if (shown && shown !== document.activeElement) leave();
    });
    chat.addEventListener("focusin", (event) => {
      const chip = chipAt(event);
      if (chip?.matches(":focus-visible")) show(chip);
      else hide();
    });
    chat.addEventListener("focusout", hide);
    chat.addEventListener("scroll", hide, { passive: true });
    chat.addEventListener("click", (event) => {
      const title = event.target.closest(".citationlist li > button"), chip = chipAt(event);
      if (title) return open(title.parentElement, $("q", title.parentElement)?.textContent ?? "", title);
      const { item, quote: passage } = chip?.matches("button") ? itemOf(chip) : {};
      if (!item) return;
      hide();
      if ($("button", item)) open(item, passage, chip);
      else showInList(item);
    });
  });
  // Before Escape stops an answer, it closes what is open.
  window.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !shown) return;
    event.stopImmediatePropagation();
    hide();
  }, true);
  return { unmarked, name };
}
