"""The connection of `Agent("auto")`: the model that the page would choose on this machine, found with the first run."""

import asyncio
import logging
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from agent.local.manager import LocalModels
from agent.local.process import loop_runs_here
from agent.models.catalog import AUTO, ModelSpec
from agent.providers import Connection, ForwardingConnection, Reasoning, ServedModel, connect
from agent.settings import LocalSettings

log = logging.getLogger(__name__)

_UNKNOWN = ModelSpec(
    id=AUTO, name=AUTO, label=AUTO, provider="vllm", image=True, audio=True, reasoning=True, prefill=True
)
"""Refuses nothing, because it stands for a model that is not known yet. The run checks its prompt again."""


@dataclass(slots=True)
class _Chosen:
    """The model servers of one event loop, and the connection to the chosen model."""

    models: LocalModels
    served: ServedModel | None = None
    connection: Connection | None = None


class AutoConnection(ForwardingConnection):
    """A `Connection` to the model that `LocalModels` chooses, as it does for the page.

    `ready` finds it, with the first run in each event loop, and later runs stay with it as long as it answers. Nothing
    is downloaded or started before that.
    """

    def __init__(self, settings: LocalSettings) -> None:
        self._settings = settings
        self._chosen: WeakKeyDictionary[asyncio.AbstractEventLoop, _Chosen] = WeakKeyDictionary()
        self._last: Connection | None = None

    @property
    def spec(self) -> ModelSpec:
        """The chosen model of the running loop, else of any loop; before the first run one that takes everything."""
        found = self._connection()
        return found.spec if found is not None else _UNKNOWN

    async def ready(self) -> None:
        """Choose the model if none was chosen in this loop, or if that one answers no more. This can take seconds.

        Raises `LocalModelError` with the reason if there is none.
        """
        loop = asyncio.get_running_loop()
        if loop not in self._chosen:
            self._chosen[loop] = _Chosen(LocalModels(self._settings, say=log.warning))
        chosen = self._chosen[loop]
        served = await chosen.models.ready()
        if chosen.connection is None or chosen.served not in served:
            if chosen.connection is not None:
                await chosen.connection.aclose()
            chosen.served, chosen.connection = served[0], connect(served[0].spec, served[0].endpoint)
            self._last = chosen.connection

    def check(self) -> None:
        """Do nothing: only `ready` knows whether a request can be made."""

    def effort(self, reasoning: Reasoning | None) -> Reasoning | None:
        """Return the effort that the chosen model will be asked for."""
        found = self._connection()
        return found.effort(reasoning) if found is not None else None

    async def aclose(self) -> None:
        """End what runs in this loop: the connection, and the server if one was started. The next run starts again."""
        if chosen := self._chosen.pop(asyncio.get_running_loop(), None):
            if chosen.connection is not None:
                await chosen.connection.aclose()
            await chosen.models.aclose()

    def end_servers(self) -> None:
        """Implement `OwnsServers`."""
        for loop, chosen in list(self._chosen.items()):
            if not loop_runs_here(loop):
                chosen.models.end()
                del self._chosen[loop]

    def _connection(self) -> Connection | None:
        try:
            chosen = self._chosen.get(asyncio.get_running_loop())
        except RuntimeError:  # no loop runs here
            chosen = None
        return chosen.connection if chosen is not None and chosen.connection is not None else self._last

    def _target(self) -> Connection:
        chosen = self._chosen.get(asyncio.get_running_loop())
        assert chosen is not None, "a run calls `ready` first"
        assert chosen.connection is not None
        return chosen.connection
