// Opens a cited passage in its document, when the number of the source or its title in the list is pressed. If the
// document is gone, the passage is shown in the list.
({ said, hint, load, conversation, ask }) => {
  const OPENING_MS = 400; // a page is drawn within this time, if the server is not busy
  let opening = false;
  document.addEventListener("transcript:source", async ({ detail: { turn, source, passage, opener } }) => {
    if (opening) return;
    opening = true;
    const { title, page, number } = source;
    const slow = setTimeout(() => hint(said.passage_opening.replace("{name}", () => title)), OPENING_MS);
    try {
      const [found, show] = await Promise.all([
        ask(`/${conversation()}/passage`, { method: "POST", body: { document: title, page, passage } }),
        load("viewer"),
      ]);
      if (!document.querySelector("dialog[open]")) show.passage(found, opener);
    } catch (error) {
      hint(error.status ? error.message : said.chats_failed);
      window.live.transcript.showSource(turn, number);
    }
    clearTimeout(slow);
    opening = false;
  });
}
