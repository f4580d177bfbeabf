"""Ratings of answers for the owner: lines of JSON in a file. They name no visitor."""

import asyncio
import json
import os
from pathlib import Path

from agent.errors import Limited
from agent.history import now
from agent.i18n.text import _
from agent.rendering.html import without_mark_signs
from agent.responses import fix_surrogates
from agent.system.threads import HISTORY_FILES
from agent.web.chat.sent_message import typed_text
from agent.web.chat.transcript import ConversationTurn
from agent.web.chat.turns import answer_text

MOST_BYTES = 100_000_000
"""The most bytes of the file. The owner can move it away at any time."""
MOST_TEXT = 5_000
"""The characters that are kept of a message and of an answer."""
RATINGS_EACH, RATINGS_PER_ADDRESS = 5, 20
"""Ratings a minute of one visitor of a public page, and of all visitors at one network address."""
MOST_REASON = 1_000
"""The characters of a reason."""


class Ratings:
    """Adds ratings to `path`. It is None if the owner wants none."""

    def __init__(self, path: Path | None) -> None:
        self.path, self._turn = path, asyncio.Lock()

    async def add(self, turn: ConversationTurn, *, is_good: bool, reason: str, with_text: bool) -> None:
        """Add a line: the day, the model, the rating, the reason, and the text of the turn if it `with_text`.

        Raises `Limited` if the file is full.
        """
        line = {
            "day": now().date().isoformat(),
            "model": turn.model,
            "rating": "good" if is_good else "bad",
            "reason": reason.strip()[:MOST_REASON],
        }
        if with_text:
            message = typed_text(turn.user) if turn.user else ""
            line |= {"message": message[:MOST_TEXT], "answer": answer_text(turn)[:MOST_TEXT]}
        plain = {name: without_mark_signs(fix_surrogates(text)) for name, text in line.items()}
        async with self._turn:
            await HISTORY_FILES.run(self._append, f"{json.dumps(plain, ensure_ascii=False)}\n".encode())

    def _append(self, line: bytes) -> None:
        assert self.path is not None
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
            if os.fstat(file.fileno()).st_size + len(line) > MOST_BYTES:
                raise Limited(_("The owner's file for ratings is full, so nothing was sent."))
            file.write(line)
