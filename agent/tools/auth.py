"""Secrets of tools: named by their environment variable, read once, and kept out of everything that is shown."""

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
    """What a request adds to its headers and its query; neither is ever shown."""

    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    query: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def redacted(self, text: str) -> str:
        """The text without the secrets, also where a server repeats them escaped or encoded."""
        for form in sorted({form for secret in self.secrets for form in _forms(secret)}, key=len, reverse=True):
            text = text.replace(form, "[secret]")
        return text


@dataclass(frozen=True, kw_only=True)
class Auth:
    """How a request is authorised: by the secret in the environment variable `variable`.

    `kind` is "bearer", "basic" (the secret is "user:password"), "header" or "query"; for the last two `name` is that of
    the header or of the query's field.
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
        """Read the secret. Raises `ConfigError` naming the variable where there is none."""
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
