"""Secrets of tools: named by their environment variable, read once, and never shown."""

import base64
import html
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote, quote_plus

from pydantic import ConfigDict

from agent.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """The headers and query fields that authorise a request. They are never shown."""

    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    query: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def redacted(self, text: str) -> str:
        """Return the text without the secrets, even if a server repeats them escaped or encoded."""
        for form in sorted({form for secret in self.secrets for form in _forms(secret)}, key=len, reverse=True):
            text = text.replace(form, "[secret]")
        return text


@dataclass(frozen=True, kw_only=True)
class Auth:
    """The authorisation of a request, with the secret from the environment variable `variable`.

    `kind` is "bearer", "basic" (the secret is "user:password"), "header" or "query". For the last two, `name` is the
    name of the header or the query field.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    kind: Literal["bearer", "basic", "header", "query"]
    variable: str
    name: str = ""

    def __post_init__(self) -> None:
        if self.kind not in ("bearer", "basic", "header", "query"):
            raise ConfigError(f"auth.kind must be bearer, basic, header or query, not {self.kind!r}")
        if (self.kind in ("header", "query")) != bool(self.name):
            raise ConfigError(f"auth.name is needed for header and query, and for nothing else; kind is {self.kind!r}")

    def credentials(self, env: Mapping[str, str]) -> Credentials:
        """Read the secret. Raises `ConfigError` with the variable's name if there is none or it cannot be sent."""
        secret = env.get(self.variable, "").strip()
        if not secret:
            raise ConfigError(f"the environment variable {self.variable} is not set")
        if not re.fullmatch(r"[\x20-\x7e]+", secret):
            raise ConfigError(f"the environment variable {self.variable} has characters that no header can carry")
        match self.kind:
            case "bearer":
                return Credentials(headers={"Authorization": f"Bearer {secret}"}, secrets=(secret,))
            case "basic":
                coded = base64.b64encode(secret.encode()).decode()
                _, _, password = secret.partition(":")
                secrets = tuple(filter(None, (secret, coded, password)))
                return Credentials(headers={"Authorization": f"Basic {coded}"}, secrets=secrets)
            case "header":
                return Credentials(headers={self.name: secret}, secrets=(secret,))
            case "query":
                return Credentials(query={self.name: secret}, secrets=(secret,))


def _forms(secret: str) -> set[str]:
    return {
        secret,
        quote(secret, safe=""),
        quote(secret),
        quote_plus(secret),
        html.escape(secret),
        json.dumps(secret)[1:-1],
        json.dumps(secret)[1:-1].replace("/", "\\/"),
        base64.b64encode(secret.encode()).decode(),
    }
