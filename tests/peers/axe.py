"""Runs axe-core in a page to find accessibility faults."""

from typing import Any

from playwright.sync_api import Page

from tests.peers.install import MODULES

SOURCE = MODULES / "axe-core" / "axe.min.js"
GRAVE = ("serious", "critical")


def grave(page: Page) -> list[str]:
    """Return the serious and critical findings, each with the first elements that it is about."""
    return [_line(one) for one in _violations(page) if one["impact"] in GRAVE]


def violations(page: Page) -> list[str]:
    """Return all findings, including minor ones."""
    return [_line(one) for one in _violations(page)]


def _violations(page: Page) -> list[dict[str, Any]]:
    assert SOURCE.is_file(), "axe-core is not installed: `make test` does that"
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(SOURCE.read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = page.evaluate("async () => (await axe.run(document)).violations")
    return found


def _line(finding: dict[str, Any]) -> str:
    where = [f"{node['target'][-1]} {node['failureSummary']}" for node in finding["nodes"][:4]]
    return f"{finding['id']} ({finding['impact']}): {finding['help']}: {'; '.join(where)}"
