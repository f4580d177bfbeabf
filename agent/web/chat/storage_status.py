"""The state of the store, for the line of the page that says that nothing can be kept."""

from agent.errors import StoreUnavailable
from agent.history import HistoryStore, new_id


class StorageStatus:
    """`is_away` is True while the server of the store was away at the last look."""

    def __init__(self, store: HistoryStore) -> None:
        self._store = store
        self.is_away = False

    async def check(self) -> None:
        """Look again."""
        try:
            await self._store.list(new_id(), limit=1)
            self.is_away = False
        except StoreUnavailable:
            self.is_away = True
