"""Identifies visitors by an id that is signed into an HttpOnly cookie and verified at every call."""

import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from tempfile import mkstemp
from urllib.parse import quote

from itsdangerous import BadData, URLSafeSerializer
from starlette.datastructures import Headers
from starlette.types import Scope

from agent.errors import ConfigError
from agent.history import new_id
from agent.web.middleware.requests import is_secure

COOKIE = "switchboard_visitor"
"""The stem of the cookie's name, and the whole name in older versions."""
MAX_AGE = 365 * 24 * 3600
KEY_BYTES = 32
"""Random bytes of a new key for the signatures."""
KEY_LENGTH = 43
"""Characters of such a key. A shorter one is what is left of a file that was cut off."""
MOST_BYTES = 64 * 1024
_MOST_SEGMENTS = 6

_PORT = re.compile(r":(\d{1,5})$")


@dataclass(frozen=True, slots=True)
class CookieJar:
    """The cookie of one page: `secure` over https, the host and port that the browser knows, and the page's path.

    Browsers share cookies between the ports and paths of a host, and let a sibling host set cookies for the parent
    domain. So the name tells pages apart, and over https its `__Host-` prefix keeps sibling hosts out. Over http
    nothing does, and a hostile server on another port of the same host can set any cookie of ours.
    """

    secure: bool
    host: str = "localhost"
    port: int | None = None
    prefix: str = ""

    @classmethod
    def of(cls, scope: Scope, prefix: str) -> "CookieJar":
        """The jar that a request uses. A client that lies about its own request gains only another name."""
        headers = Headers(scope=scope)
        host = headers.get("host", "localhost").lower()
        found = _PORT.search(host)
        port = int(found[1]) if found else None
        return cls(is_secure(scope), host[: found.start()] if found else host, port, prefix)

    @property
    def name(self) -> str:
        """The cookie's name here."""
        port = self.port or (443 if self.secure else 80)
        below = f"_{quote(self.prefix.strip('/'), safe='')}" if self.prefix else ""
        return (
            f"__Host-{COOKIE}{'' if port == 443 else f'-{port}'}{below}" if self.secure else f"{COOKIE}-{port}{below}"
        )

    @property
    def path(self) -> str:
        """The path that the browser sends the cookie to. A `__Host-` cookie has no choice."""
        return "/" if self.secure else self.prefix or "/"

    def values(self, scope: Scope, name: str = "") -> set[str]:
        """The different values that came with a request, under this name or another one."""
        pairs = (pair.partition("=") for header in Headers(scope=scope).getlist("cookie") for pair in header.split(";"))
        return {value.strip() for key, _, value in pairs if key.strip() == (name or self.name)}

    def setting(self, value: str) -> str:
        """The header that keeps this value."""
        # Partitioned: a browser without third-party cookies keeps this one for the page in a frame.
        site = "SameSite=None; Secure; Partitioned" if self.secure else "SameSite=Lax"
        return f"{self.name}={value}; Path={self.path}; Max-Age={MAX_AGE}; HttpOnly; {site}"

    def expiring(self, path: str) -> Iterator[str]:
        """Headers that delete each cookie of this name that a request below `path` may have brought, but our own."""
        if self.secure:  # the prefix leaves one place, and there only what is not partitioned is not ours
            yield f"{self.name}=; Path=/; Max-Age=0; Secure"
            return
        for domain in ("", *_domains(self.host)):
            for place in _paths_above(self.prefix + path):
                if domain or place != self.path:
                    yield f"{self.name}=; Path={place}; Max-Age=0" + (f"; Domain={domain}" if domain else "")


def _domains(host: str) -> list[str]:
    """The domains whose cookies a browser sends to this host."""
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        labels = host.split(".")
        return [".".join(labels[start:]) for start in range(len(labels) - 1)][-4:]
    return []


def _paths_above(path: str) -> list[str]:
    """The paths whose cookies a browser sends to this path."""
    segments = [segment for segment in path.split("/") if segment][:_MOST_SEGMENTS]
    whole = ["/" + "/".join(segments[: count + 1]) for count in range(len(segments))]
    return ["/", *whole, *(f"{one}/" for one in whole)]


class VisitorCookies:
    """Mints and checks visitor cookies; the key lives in the data folder, so that a restart forgets nobody."""

    def __init__(self, key: str) -> None:
        self._signer = URLSafeSerializer(key, salt="visitor")

    @classmethod
    def in_folder(cls, folder: Path) -> "VisitorCookies":
        """With the key kept in `folder`, made at first use; `SWITCHBOARD_SECRET` wins over it. Raises `ConfigError`."""
        if given := os.environ.get("SWITCHBOARD_SECRET"):
            return cls(given)
        path = folder / "secret"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not os.path.lexists(path):
                _make_key(path)
            key = _read_key(path)
        except OSError as error:
            raise ConfigError(f"The key of the visitors' cookies, {path}, cannot be used: {error.strerror}.") from error
        if len(key) < KEY_LENGTH:
            raise ConfigError(
                f"The key of the visitors' cookies, {path}, has {len(key)} characters and needs {KEY_LENGTH}. "
                "Restore the file, or delete it: a new key is made, and visitors lose their conversations."
            )
        return cls(key)

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


def _make_key(path: Path) -> None:
    """Write a new key where there is none. The first of two processes wins, and both read the winner's."""
    handle, draft = mkstemp(prefix=".secret-", dir=path.parent)  # readable by this user alone
    try:
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_urlsafe(KEY_BYTES))
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.unlink(draft)


def _read_key(path: Path) -> str:
    """The key in this file. Raises `ConfigError` for anything but a file: a pipe would be waited for without end."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ConfigError(f"The key of the visitors' cookies, {path}, is not a file.")
        return file.read(MOST_BYTES).decode(errors="replace").strip()
