"""Identifies visitors by an id in a signed HttpOnly cookie, which is verified in every request.

`isolation` keeps the visitors apart that this module identifies.
"""

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
from agent.web.middleware.requests import cookies_of, is_secure

GUEST = "guest"
"""Replaces the visitor's id in the sessions and the common shares of guests. The ids of their owners begin with it."""


COOKIE = "switchboard_visitor"
"""The stem of the cookie's name, and the whole name in older versions."""
MAX_AGE_SECONDS = 365 * 24 * 3600
KEY_BYTES = 32
"""Random bytes of a new signing key."""
KEY_LENGTH = 43
"""Characters of a signing key. A shorter key comes from a truncated file."""
MIN_SECRET_LENGTH = 16
"""The fewest characters of a key from the environment. A visitor could find a shorter one by trying."""
MAX_KEY_FILE_BYTES = 64 * 1024
_MAX_SEGMENTS = 6

_PORT = re.compile(r":(\d{1,5})$")


@dataclass(frozen=True, slots=True)
class CookieJar:
    """The cookie of one page: `secure` over https, host and port as the browser sees them, and the page's path.

    Browsers share cookies between the ports and paths of a host, and let a sibling host set cookies for the parent
    domain. So the name tells pages apart, and over https its `__Host-` prefix keeps sibling hosts out. Over http
    nothing does: a hostile server on another port of the same host can set any cookie of this page.
    """

    secure: bool
    host: str = "localhost"
    port: int | None = None
    prefix: str = ""

    @classmethod
    def of(cls, scope: Scope, prefix: str) -> "CookieJar":
        """Return the jar for a request. A client that lies about its own request gains only another name."""
        headers = Headers(scope=scope)
        host = headers.get("host", "localhost").lower()
        found = _PORT.search(host)
        port = int(found[1]) if found else None
        return cls(is_secure(scope), host[: found.start()] if found else host, port, prefix)

    @property
    def name(self) -> str:
        """The cookie's name on this page."""
        port = self.port or (443 if self.secure else 80)
        suffix = f"_{quote(self.prefix.strip('/'), safe='')}" if self.prefix else ""
        return (
            f"__Host-{COOKIE}{'' if port == 443 else f'-{port}'}{suffix}" if self.secure else f"{COOKIE}-{port}{suffix}"
        )

    @property
    def path(self) -> str:
        """The path that the browser sends the cookie to. A `__Host-` cookie requires "/"."""
        return "/" if self.secure else self.prefix or "/"

    def values(self, scope: Scope, name: str = "") -> set[str]:
        """Return the different values in a request, under this name or another one, among its first cookies."""
        return cookies_of(scope, name or self.name)

    def setting(self, value: str) -> str:
        """Return the header that sets this value."""
        # Partitioned cookies work in a frame even if the browser blocks third-party cookies.
        site = "SameSite=None; Secure; Partitioned" if self.secure else "SameSite=Lax"
        return f"{self.name}={value}; Path={self.path}; Max-Age={MAX_AGE_SECONDS}; HttpOnly; {site}"

    def expiring(self, path: str) -> Iterator[str]:
        """Yield headers that delete every cookie of this name sent below `path`, except the page's own."""
        if self.secure:  # the prefix leaves one place, and there only unpartitioned cookies are foreign
            yield f"{self.name}=; Path=/; Max-Age=0; Secure"
            return
        for domain in ("", *_domains(self.host)):
            for place in _paths_above(self.prefix + path):
                if domain or place != self.path:
                    yield f"{self.name}=; Path={place}; Max-Age=0" + (f"; Domain={domain}" if domain else "")


def _domains(host: str) -> list[str]:
    """Return the domains of the cookies that a browser sends to this host."""
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        labels = host.split(".")
        return [".".join(labels[start:]) for start in range(len(labels) - 1)][-4:]
    return []


def _paths_above(path: str) -> list[str]:
    """Return the paths of the cookies that a browser sends to this path."""
    segments = [segment for segment in path.split("/") if segment][:_MAX_SEGMENTS]
    whole = ["/" + "/".join(segments[: count + 1]) for count in range(len(segments))]
    return ["/", *whole, *(f"{one}/" for one in whole)]


class VisitorCookies:
    """Creates and checks visitor cookies. The key is in the data folder, so visitors are known after a restart."""

    def __init__(self, key: str) -> None:
        self._signer = URLSafeSerializer(key, salt="visitor")
        self._guest_signer = URLSafeSerializer(key, salt="guest")

    @classmethod
    def in_folder(cls, folder: Path) -> "VisitorCookies":
        """Return an instance with the key from `folder`, created at first use. Raises `ConfigError`.

        The variable `SWITCHBOARD_SECRET` takes precedence over the file.
        """
        if secret := os.environ.get("SWITCHBOARD_SECRET"):
            if len(secret.strip()) < MIN_SECRET_LENGTH:
                raise ConfigError(
                    f"SWITCHBOARD_SECRET is shorter than {MIN_SECRET_LENGTH} characters, so visitors could guess it "
                    "and sign cookies of others. Set a long random word, or unset it: the app then makes a key."
                )
            return cls(secret)
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
        """Create a new visitor. Return the id and the cookie's value."""
        visitor = new_id()
        return visitor, self.cookie(visitor)

    def cookie(self, visitor: str) -> str:
        """Return the cookie's value for a visitor."""
        return str(self._signer.dumps(visitor))

    def read(self, cookie: str | None) -> str | None:
        """Return the visitor's id, or None if the cookie is absent or its signature is invalid."""
        return _signed(self._signer, cookie)

    def guest_token(self, owner: str) -> str:
        """Return what a page without cookies shows to read the answers of this guest."""
        return str(self._guest_signer.dumps(owner))

    def read_guest_token(self, token: str | None) -> str | None:
        """Return the guest's owner id, or None if the token is absent or its signature is invalid."""
        return _signed(self._guest_signer, token)


def _signed(signer: URLSafeSerializer, text: str | None) -> str | None:
    if not text:
        return None
    try:
        value: object = signer.loads(text)
    except BadData:
        return None
    return value if isinstance(value, str) else None


def _make_key(path: Path) -> None:
    """Write a new key if there is none. The first of two processes wins, and both read the winner's key."""
    handle, draft = mkstemp(prefix=".secret-", dir=path.parent)  # readable by this user alone
    try:
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_urlsafe(KEY_BYTES))
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.unlink(draft)


def _read_key(path: Path) -> str:
    """Return the key in this file. Raises `ConfigError` for anything but a file, because a pipe would block."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ConfigError(f"The key of the visitors' cookies, {path}, is not a file.")
        return file.read(MAX_KEY_FILE_BYTES).decode(errors="replace").strip()
