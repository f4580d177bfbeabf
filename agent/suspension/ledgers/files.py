"""A ledger in a folder, with one file for each used id: only one process can create a file."""

import asyncio
import os
from datetime import datetime
from hashlib import sha256
from pathlib import Path

from agent.errors import HistoryError, reason_of
from agent.history import steady_now
from agent.i18n import _

_NEVER = "never"


class FileLedger:
    """A `Ledger` in a folder, for any number of processes of one machine. The first use makes the folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)

    async def use(self, id: str, expires_at: datetime | None) -> bool:
        """Implement `Ledger.use`. Raises `HistoryError` if the folder cannot be used."""
        until = _NEVER if expires_at is None else repr(expires_at.timestamp())
        try:
            return await asyncio.to_thread(self._use, sha256(id.encode()).hexdigest(), until)
        except OSError as error:
            sentence = _("The ledger {name} cannot be used: {error}.", name=self._folder.name, error=reason_of(error))
            raise HistoryError(sentence) from error

    def _use(self, name: str, until: str) -> bool:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._purge()
        try:
            file = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return False
        with os.fdopen(file, "w") as out:
            out.write(until)
        return True

    def _purge(self) -> None:
        moment = steady_now().timestamp()
        for path in self._folder.iterdir():
            try:
                text = path.read_text()
                if text not in ("", _NEVER) and float(text) <= moment:  # "" is just being written
                    path.unlink()
            except (OSError, ValueError):  # another process removed it first, or the file is not ours
                continue
