"""Decides which tests belong to which tier, in which order they run, and how many examples a property tries.

- `make test-fast` runs tests that need no app, browser, real weights or many seconds, with the fewest examples.
- `make test`, the gate, adds the rest except tests marked `full`. A browser test is in the gate if it is marked
  `gate("promise")`, with the promise to visitors that it checks (see tests/README.md).
- `make test-all` runs everything, and property tests with random examples.
"""

import gc
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling  # pyright: ignore[reportMissingTypeStubs]

gc.disable()  # imports and the list of tests create no garbage, and looking for it takes a fifth of their time

# Files that take longest come first. Otherwise one process would run a long file alone at the end.
LONGEST = (
    *("test_page", "test_isolation", "test_shutdown", "test_doctor", "test_space", "test_proxies", "test_deploy"),
    *("test_public_limits", "test_floods", "test_uploads", "test_live_page", "test_keyboard", "test_logs"),
    *("test_looks", "test_length_limit", "test_link_fetch", "test_terminal", "test_linear"),
)

# Without a deadline, because it would fail on a busy machine.
settings.register_profile("quick", derandomize=True, max_examples=12, deadline=None)
settings.register_profile("gate", derandomize=True, max_examples=34, deadline=None)
settings.register_profile("full", max_examples=100, deadline=None)
settings.load_profile("gate")  # `--hypothesis-profile` replaces it before any test is imported


def in_full_tier() -> bool:
    """Return True in the full tier."""
    return settings.get_current_profile_name() == "full"


def examples(count: int) -> int:
    """Return how many examples a property test tries: `count` in the full tier, a third in the gate, else an eighth."""
    if in_full_tier():
        return count
    return max(5, count // (8 if settings.get_current_profile_name() == "quick" else 3))


def _in_browser(item: pytest.Item) -> bool:
    return "browser" in getattr(item, "fixturenames", ())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Mark tests by what they use, before `-m` selects.

    Browser tests come last, because Playwright's event loop stays in the main thread, where no other loop can run after
    that. Long files come first. Both only after pytest has put tests with equal parameters beside each other.
    """
    for item in items:
        if _in_browser(item):
            item.add_marker("browser")
        if item.get_closest_marker("browser") and not item.get_closest_marker("gate"):
            item.add_marker("full")
        if {"app", "start_app"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("slow")
    yield
    order = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (_in_browser(item), order.get(item.path.stem, len(order))))


def pytest_collection_finish() -> None:
    """Look for garbage again, but not in what has been imported, because that would take half a second each time."""
    gc.freeze()
    gc.enable()


class FilesApart(LoadScopeScheduling):
    """Runs a file's tests in one process, because they share what they start. Browser tests of a file count separately.

    The order is kept, because the usual order (large files first) would start browser tests before others.
    pytest-xdist's own groups do not work on pytest 9.2 (its issue 1386).
    """

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False
        self._groups: dict[str, str] = {}

    def schedule(self) -> None:
        collected = next(iter(self.registered_collections.values()))
        for number, (_, tests) in enumerate(groupby(collected, key=lambda test: test.partition("::")[0])):
            self._groups |= dict.fromkeys(tests, str(number))
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        return self._groups[nodeid]

    def _reschedule(self, node: Any) -> None:
        # A process has the test that it runs and the next one. pytest-xdist would let it hold a third one at the end,
        # while another process has none.
        if self._pending_of(self.assigned_work[node]) != 2 or not self.workqueue:
            super()._reschedule(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesApart:
    """Return the scheduler that keeps each file in one process."""
    return FilesApart(config, log)
