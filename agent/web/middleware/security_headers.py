"""The headers of every response: what a browser can load, show and keep. Knows only HTTP.

Scripts and style sheets do without those that only a document obeys. A visit loads 80 of them, and these headers are a
fifth of its bytes.
"""

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send

FRAMERS = ("https://huggingface.co",)
POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "media-src 'self' data: blob:",
        "connect-src 'self' data: blob:",
        "worker-src 'self' blob:",
        "font-src 'self' data:",
        "form-action 'self'",
        "base-uri 'self'",
        "object-src 'none'",
        " ".join(("frame-ancestors 'self'", *FRAMERS)),  # last, because more framers may be appended
    )
)
SELF_ONLY = ("autoplay", "camera", "clipboard-read", "clipboard-write", "fullscreen", "microphone")
"""Features that the page uses: camera and microphone to attach, clipboard to copy and paste, full-screen images."""
OFF = (
    "accelerometer", "bluetooth", "browsing-topics", "display-capture",
    "encrypted-media", "gamepad", "geolocation", "gyroscope", "hid", "idle-detection", "local-fonts", "magnetometer",
    "midi", "payment", "picture-in-picture", "publickey-credentials-create", "publickey-credentials-get",
    "screen-wake-lock", "serial", "storage-access", "usb", "window-management", "xr-spatial-tracking",
)  # fmt: skip
DOCUMENT_HEADERS = (
    ("permissions-policy", ", ".join((*(f"{one}=(self)" for one in SELF_ONLY), *(f"{one}=()" for one in OFF)))),
    # Applies to a page in its own window, not in a frame. A login comes back in the same window.
    ("cross-origin-opener-policy", "same-origin"),
)
HEADERS = (
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),  # or another port of this host could show what is cached
)
NO_DOCUMENTS = ("text/javascript", "text/css")
SESSION = b"session="
"""The cookie in which Gradio keeps a login."""


class SecurityHeadersSend:
    """An ASGI `send` that adds the headers and `cookies` to the response, wherever it comes from."""

    def __init__(self, send: Send, policy: str) -> None:
        self._send, self._policy = send, policy
        self.cookies: list[str] = []
        self.begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            message["headers"] = [_partitioned(*pair) for pair in message.get("headers", [])]
            headers = MutableHeaders(scope=message)
            is_document = not headers.get("content-type", "").startswith(NO_DOCUMENTS)
            if is_document:
                headers.append("content-security-policy", self._policy)  # beside the route's own: a browser obeys both
            for name, value in (*HEADERS, *(DOCUMENT_HEADERS if is_document else ())):
                headers[name] = value
            headers.setdefault("cache-control", "private")
            del headers["access-control-allow-credentials"]  # Gradio would let any site read with a visitor's cookies
            del headers["access-control-allow-origin"]
            if headers.get("content-type", "").startswith("text/event-stream"):
                headers["x-accel-buffering"] = "no"
            for cookie in self.cookies:
                headers["cache-control"] = "no-store"
                headers.append("set-cookie", cookie)
        await self._send(message)


def _partitioned(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Return the header. Gradio's session cookie becomes partitioned, so that browsers keep it in a frame."""
    return name, value + b"; Partitioned" if name == b"set-cookie" and value.startswith(SESSION) else value
