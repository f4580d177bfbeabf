"""The paths of uploads that visitors have received, each usable only by the visitor that received it."""

from collections import OrderedDict
from heapq import heapify, heappop, heapreplace

from agent.web.guests import GUEST

MAX_IDS = 50_000
MAX_IDS_PER_VISITOR = 4_000
MAX_IDS_OF_GUESTS = 10_000
"""The most ids of a kind that are remembered: in total, for one visitor, and for all guests together."""


class IssuedIds:
    """A table of ids by owner. An owner is a visitor, one of their sessions, or None for a guest."""

    def __init__(self) -> None:
        self._of_account: dict[str, OrderedDict[tuple[str, str], None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def owns(self, id_: str, owner: str | None) -> bool:
        """Return True if this owner has received this id."""
        return (owner or "", id_) in self._of_account.get(_account(owner), ())

    def add(self, id_: str, owner: str | None) -> None:
        """Let this owner use this id from now on.

        Each visitor has a share of the table, and all guests together have one. A full share drops its oldest ids.
        """
        account = _account(owner)
        issued, id_of_owner = self._of_account.setdefault(account, OrderedDict()), (owner or "", id_)
        self._count -= len(issued)
        issued[id_of_owner] = None
        issued.move_to_end(id_of_owner)
        while len(issued) > (MAX_IDS_OF_GUESTS if account == GUEST else MAX_IDS_PER_VISITOR):
            issued.popitem(last=False)
        self._count += len(issued)
        if self._count > MAX_IDS:
            self._forget()

    def _forget(self) -> None:
        """Drop a tenth of all ids, the oldest of the largest accounts first, to protect the shares of the others."""
        largest = [(-len(issued), account) for account, issued in self._of_account.items()]
        heapify(largest)
        while self._count > MAX_IDS * 9 // 10:
            size, account = largest[0]
            self._of_account[account].popitem(last=False)
            self._count -= 1
            if size == -1:
                del self._of_account[account]
                heappop(largest)
            else:
                heapreplace(largest, (size + 1, account))


def _account(owner: str | None) -> str:
    """Return the visitor with the share that counts the ids of this owner."""
    return (owner or GUEST).partition("-")[0]
