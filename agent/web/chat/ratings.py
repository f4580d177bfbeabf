"""Ratings of answers for the owner: lines of JSON in a file, and in a dataset on the hub. They name no visitor."""

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Self, cast

from agent.errors import Limited
from agent.history import new_id, now
from agent.i18n.text import _
from agent.rendering.html import without_mark_signs
from agent.responses import fix_surrogates
from agent.settings import Settings
from agent.system.threads import HISTORY_FILES, LOOKS, Threads
from agent.web.chat.transcript import ConversationTurn
from agent.web.chat.turns import plain_texts

if TYPE_CHECKING:
    from concurrent.futures import Future

    from huggingface_hub import CommitScheduler

MOST_BYTES = 100_000_000
"""The most bytes of the file. The owner can move it away at any time."""
MOST_TEXT = 5_000
"""The characters that are kept of a message and of an answer."""
RATINGS_EACH, RATINGS_PER_ADDRESS = 5, 20
"""Ratings a minute of one visitor of a public page, and of all visitors at one network address."""
MOST_REASON = 1_000
"""The characters of a reason."""


PUSH_MINUTES, RETRY_SECONDS = 5.0, 60.0
"""Minutes between two pushes to the hub, and seconds until it is asked again for a dataset that it did not give."""
HUB_SECONDS, LAST_SECONDS = 10.0, 5.0
"""The longest wait for an answer of the hub, and for the last push when the app ends."""
HUB = Threads("hub", 1)
PATTERN = "*.jsonl"

log = logging.getLogger(__name__)


class RatingsDataset:
    """Pushes the files in `folder` to a dataset on the hub, which is private if it is new. Nobody waits for the hub.

    The files stay. What could not be pushed is tried again, also by the next process that has this folder.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        minutes: float = PUSH_MINUTES,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._name, self._folder, self._minutes, self._sleep = name, folder, minutes, sleep
        self._scheduler: CommitScheduler | None = None

    async def run(self) -> None:
        """Begin to push, and try again as long as the hub does not let us."""
        while self._scheduler is None:
            try:
                self._scheduler = await HUB.run(self._begin)
            except Exception as error:  # huggingface_hub documents no class for all that can fail
                log.warning("ratings are only kept here, because the dataset %s cannot be used: %s", self._name, error)
                await self._sleep(RETRY_SECONDS)

    async def aclose(self) -> None:
        """Push the last ratings, also if `run` did not get far enough to push. It takes `LAST_SECONDS` at most."""
        if self._scheduler is None and not any(self._folder.glob(PATTERN)):
            return
        try:
            async with asyncio.timeout(LAST_SECONDS):
                if self._scheduler is None:
                    self._scheduler = await HUB.run(self._begin)
                trigger = cast("Callable[[], Future[object]]", self._scheduler.trigger)  # pyright: ignore[reportUnknownMemberType]
                await asyncio.wrap_future(trigger())
        except Exception as error:
            log.warning("the last ratings were not pushed; a start with the same folder pushes them: %r", error)
        finally:
            if self._scheduler is not None:
                self._scheduler.stop()

    def _begin(self) -> "CommitScheduler":
        import httpx2
        from huggingface_hub import CommitScheduler, HfApi, get_token, set_client_factory

        if (token := get_token()) is None:
            raise PermissionError("there is no token; set HF_TOKEN to one that may write")
        # Without this, the client waits for ever, and so does the end of the app.
        set_client_factory(lambda: httpx2.Client(follow_redirects=True, timeout=HUB_SECONDS))
        return CommitScheduler(
            repo_id=self._name,
            repo_type="dataset",
            private=True,
            folder_path=self._folder,
            every=self._minutes,
            allow_patterns=PATTERN,
            hf_api=HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=token),
        )


class Ratings:
    """Adds ratings to `path`. It is None if the owner wants none. `dataset` pushes its folder to the hub."""

    def __init__(self, path: Path | None, dataset: RatingsDataset | None = None) -> None:
        self.path, self.dataset, self._turn = path, dataset, asyncio.Lock()

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return what the settings want. Each process has a file of its own in the dataset, so that none is lost."""
        if not settings.ratings_dataset:
            return cls(settings.data_dir / settings.ratings if settings.ratings else None)
        stem = Path(settings.ratings).stem or "ratings"
        path = settings.data_dir / "ratings-dataset" / f"{stem}-{new_id()[:12]}.jsonl"
        return cls(path, RatingsDataset(settings.ratings_dataset, path.parent))

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
            line |= {name: text[:MOST_TEXT] for name, text in (await LOOKS.run(plain_texts, turn)).items()}
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
