"""The sound of a text, from OpenAI's route `/v1/audio/speech`, which vLLM-Omni and others have, too."""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass

from agent.errors import ConfigError, InputError, ProviderError
from agent.fetch import GUARD
from agent.i18n.text import _
from agent.models.catalog import ProviderSpec
from agent.providers.connection import Endpoint, server_named
from agent.system.media_types import detect_mime

log = logging.getLogger(__name__)

KEY_NAME = "SPEECH_API_KEY"
"""The environment variable for the key of a server that is named by its URL."""
MAX_BYTES = 4_000_000
"""The most bytes of the sound of one request: four minutes of MP3, or more than a minute of WAV."""
SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class SpeechServer:
    """Speaks with one model and voice of a server. An empty `model` or `voice` is the server's choice."""

    endpoint: Endpoint
    provider: ProviderSpec
    model: str
    voice: str

    @property
    def label(self) -> str:
        """The name that visitors read: the provider, or "" for a server that is named by its URL."""
        return self.provider.label if self.endpoint.base_url == self.provider.base_url else ""

    async def speak(self, text: str) -> tuple[bytes, str]:
        """Return the sound of the text and its media type. Raises `ProviderError`; the log has the reason.

        The server is asked at its own address alone, without redirects. Cancelling ends the request.
        """
        url = f"{self.endpoint.base_url}/audio/speech"
        named = {"model": self.model, "voice": self.voice}
        body = {name: value for name, value in named.items() if value} | {"input": text, "response_format": "mp3"}
        headers = {"Content-Type": "application/json", "Accept": "audio/*"}
        if self.endpoint.api_key:
            headers["Authorization"] = f"Bearer {self.endpoint.api_key}"
        content = json.dumps(body).encode()
        try:
            answer = await GUARD.trusting(url).send(
                "POST", url, headers=headers, body=content, max_bytes=MAX_BYTES, seconds=SECONDS
            )
        except InputError as error:
            log.warning("the speech server: %s", error)
            raise _failed() from error
        found = detect_mime(answer.data)
        if answer.status != 200 or not found.startswith("audio/"):
            log.warning("the speech server answered with status %d and %d bytes", answer.status, len(answer.data))
            raise _failed()
        return answer.data, found


def speech_server(name: str, voice: str, env: Mapping[str, str] = os.environ) -> SpeechServer | None:
    """Return the server of the setting SPEECH, None if it is empty. Raises `ConfigError`."""
    if not name.strip():
        return None
    try:
        endpoint, provider, model = server_named(name.strip(), env, what="speech", key_name=KEY_NAME)
    except InputError as error:
        raise ConfigError(f"SPEECH: {error}") from error
    return SpeechServer(endpoint, provider, model, voice)


def _failed() -> ProviderError:
    return ProviderError(_("The server that speaks has failed."), kind="server")
