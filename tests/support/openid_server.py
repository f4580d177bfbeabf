"""A stand-in for the hub as an OpenID provider: it asks who the visitor is, and returns that person's token.

    with provider() as hub:
        ... OPENID_PROVIDER_URL=hub.url, OAUTH_CLIENT_ID=CLIENT, OAUTH_CLIENT_SECRET=SECRET ...

As at the hub, a code is valid once, for the client and the redirect address that requested it.
"""

import base64
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

CLIENT, SECRET, SCOPES = "switchboard-client", "the-secret-of-the-client", "openid profile inference-api"
PEOPLE = ("ann", "bob")


@dataclass
class Provider:
    """A running provider. `codes` are the unused codes. A token is valid for `seconds`."""

    url: str = ""
    seconds: int = 8 * 3600
    codes: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    key: rsa.RSAPrivateKey = field(default_factory=lambda: rsa.generate_private_key(65537, 2048))

    @property
    def env(self) -> dict[str, str]:
        """The variables that the hub sets in a Space with `hf_oauth: true`."""
        return {
            "OAUTH_CLIENT_ID": CLIENT,
            "OAUTH_CLIENT_SECRET": SECRET,
            "OAUTH_SCOPES": SCOPES,
            "OPENID_PROVIDER_URL": self.url,
        }

    @staticmethod
    def token(person: str) -> str:
        """Return the token that a person's login gives."""
        return f"hf_oauth_of_{person}_0123456789abcdefghijklmnop"

    def get(self, path: str, query: dict[str, str]) -> tuple[int, Any]:
        """Answer a GET: return the status, and JSON, a page, or a redirect address."""
        match path:
            case "/.well-known/openid-configuration":
                return 200, {
                    "issuer": self.url,
                    "authorization_endpoint": f"{self.url}/oauth/authorize",
                    "token_endpoint": f"{self.url}/oauth/token",
                    "userinfo_endpoint": f"{self.url}/oauth/userinfo",
                    "jwks_uri": f"{self.url}/oauth/jwks",
                    "id_token_signing_alg_values_supported": ["RS256"],
                }
            case "/oauth/jwks":
                numbers = self.key.public_key().public_numbers()
                both = {"n": _base64(_bytes(numbers.n)), "e": _base64(_bytes(numbers.e))}
                return 200, {"keys": [{"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "1", **both}]}
            case "/oauth/authorize" if query["client_id"] == CLIENT and query["scope"] == SCOPES:
                links = "".join(f'<p><a href="/allow?{urlencode({**query, "who": one})}">{one}</a>' for one in PEOPLE)
                return 200, f"<h1>Who are you?</h1>{links}"
            case "/allow":
                code = secrets.token_urlsafe(12)
                self.codes[code] = query
                return 302, f"{query['redirect_uri']}&{urlencode({'code': code, 'state': query['state']})}"
            case _:
                return 404, "Nothing here."

    def post(self, path: str, authorization: str, form: dict[str, str]) -> tuple[int, Any]:
        """Answer a POST: return the token for a code."""
        asked = self.codes.pop(form.get("code", ""), None)
        client = "Basic " + base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        if path != "/oauth/token" or asked is None or authorization != client:
            return 400, {"error": "invalid_grant"}
        if form["redirect_uri"] != asked["redirect_uri"]:
            return 400, {"error": "invalid_grant", "error_description": "another address"}
        who, now = asked["who"], int(time.time())
        claims = {
            "iss": self.url,
            "sub": who,
            "aud": CLIENT,
            "iat": now,
            "exp": now + 600,
            "nonce": asked["nonce"],
            "name": who.title(),
            "preferred_username": who,
            "profile": f"{self.url}/{who}",
            "picture": f"{self.url}/{who}.png",
        }
        return 200, {
            "access_token": self.token(who),
            "token_type": "bearer",
            "expires_in": self.seconds,
            "scope": SCOPES,
            "id_token": self._signed(claims),
        }

    def _signed(self, claims: dict[str, Any]) -> str:
        parts = ({"alg": "RS256", "kid": "1"}, claims)
        text = ".".join(_base64(json.dumps(part).encode()) for part in parts)
        return f"{text}.{_base64(self.key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


@contextmanager
def provider() -> Iterator[Provider]:
    """Run a provider on loopback until the block ends."""
    state = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            self._say(*state.get(url.path, _flat(url.query)))

        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["content-length"])).decode()
            self._say(*state.post(self.path, self.headers.get("authorization", ""), _flat(form)))

        def _say(self, status: int, what: Any) -> None:
            page = isinstance(what, str)
            body = (what if page else json.dumps(what)).encode()
            self.send_response(status)
            self.send_header("content-type", "text/html" if page else "application/json")
            self.send_header("content-length", str(len(body)))
            if status == 302:
                self.send_header("location", what)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _flat(query: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(query).items()}


def _bytes(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8, "big")


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
