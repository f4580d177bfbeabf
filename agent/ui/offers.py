"""Which models a visitor may choose: those that answer on this machine, and hosted ones, with their key or ours."""

from agent.catalog import Catalog, ModelSpec, ProviderSpec
from agent.errors import LocalModelError, ProviderError
from agent.providers import Connection, Endpoint, Models, Served, connect, default_endpoint
from agent.ui.keys import Keys


class Offers:
    """The local models, the catalog and the keys, seen as one list. Owner of the connections that many runs share."""

    def __init__(self, local: Models, catalog: Catalog, *, key_seconds: float, keys_taken: bool) -> None:
        self.local, self.catalog, self.keys_taken = local, catalog, keys_taken
        self.keys = Keys(key_seconds)
        self._connections: dict[Served, Connection] = {}

    def menu(self, owner: str, chosen: ModelSpec | None) -> list[tuple[str, str]]:
        """(label, id) of each model: what answers here, then the hosted ones; the chosen one is always among them."""
        specs = [one.spec for one in self.local.served]
        specs += [spec for spec in self.catalog.menu() if spec not in specs]
        if chosen is not None and chosen not in specs:
            specs.append(chosen)
        return [
            (f"{spec.label} · needs a key" if self.key_missing(owner, spec) else spec.label, spec.id) for spec in specs
        ]

    def find(self, model: str) -> ModelSpec | None:
        """The model of that id or name; the first local one, if there is any yet, where none is named.

        Raises `UnknownModel` with what to write instead.
        """
        served = self._served(model)
        if served is not None or not model:
            return served.spec if served else None
        return self.catalog.find(model)

    def provider(self, spec: ModelSpec) -> ProviderSpec | None:
        """The hosted provider of a model; None for those that answer on this machine."""
        found = self.catalog.providers.get(spec.provider)
        return found if found is not None and found.base_url else None

    def key_missing(self, owner: str, spec: ModelSpec) -> bool:
        """Whether it cannot be asked for want of a key."""
        provider = self.provider(spec)
        if provider is None or self.keys.get(owner, provider.id):
            return False
        return default_endpoint(provider).api_key is None

    async def open(self, owner: str, model: str) -> tuple[Connection, bool]:
        """The connection to a model, and whether it is the caller's to close: one with a visitor's key serves one run.

        Waits for a local model that is still on its way. Raises an `AgentError` with a sentence.
        """
        spec = self.find(model) if model and self._served(model) is None else None
        provider = self.provider(spec) if spec is not None else None
        if spec is None or provider is None:
            return self._shared(await self._ready(model)), False
        endpoint = default_endpoint(provider)
        if key := self.keys.get(owner, provider.id):
            self.keys.seen(owner)
            return connect(spec, Endpoint(endpoint.base_url, key)), True
        if endpoint.api_key is None:
            raise ProviderError(
                f"{spec.label} needs a key of {provider.label}: paste one, it is used for this session.", kind="key"
            )
        return self._shared(Served(spec, endpoint)), False

    async def aclose(self) -> None:
        """Close the shared connections."""
        for connection in self._connections.values():
            await connection.aclose()

    def _served(self, model: str) -> Served | None:
        served = self.local.served
        if not model:
            return served[0] if served else None
        return next((one for one in served if model in (one.spec.id, one.spec.name)), None)

    async def _ready(self, model: str) -> Served:
        served = await self.local.ready()
        if found := self._served(model):
            return found
        known = ", ".join(one.spec.id for one in served)
        raise LocalModelError(f"No model named {model!r} answers. Those that do: {known}.")

    def _shared(self, served: Served) -> Connection:
        if served not in self._connections:
            self._connections[served] = connect(served.spec, served.endpoint)
        return self._connections[served]
