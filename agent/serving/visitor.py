"""Who is looking: an id minted here, signed into an HttpOnly cookie, and verified at every call."""

import os
import secrets
from pathlib import Path

from itsdangerous import BadData, URLSafeSerializer

from agent.history import new_id

COOKIE = "switchboard_visitor"
MAX_AGE = 365 * 24 * 3600


class Visitors:
    """Mints and checks visitor cookies; the key lives in the data folder, so that a restart forgets nobody."""

    def __init__(self, key: str) -> None:
        self._signer = URLSafeSerializer(key, salt="visitor")

    @classmethod
    def in_folder(cls, folder: Path) -> "Visitors":
        """With the key kept in `folder`, made at first use; `SWITCHBOARD_SECRET` wins over it."""
        if given := os.environ.get("SWITCHBOARD_SECRET"):
            return cls(given)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "secret"
        if not path.exists():
            draft = folder / f".secret-{os.getpid()}"
            draft.touch(mode=0o600)
            draft.write_text(secrets.token_urlsafe(32))
            try:
                os.link(draft, path)  # the first of two processes wins, and both read the winner's
            except FileExistsError:
                pass
            finally:
                draft.unlink()
        return cls(path.read_text().strip())

    def mint(self) -> tuple[str, str]:
        """A new visitor: the id and the cookie's value."""
        visitor = new_id()
        return visitor, self.cookie(visitor)

    def cookie(self, visitor: str) -> str:
        """The cookie's value for a visitor."""
        return str(self._signer.dumps(visitor))

    def read(self, cookie: str | None) -> str | None:
        """The visitor's id, or None for a cookie that is absent or not ours."""
        if not cookie:
            return None
        try:
            visitor: object = self._signer.loads(cookie)
        except BadData:
            return None
        return visitor if isinstance(visitor, str) else None
