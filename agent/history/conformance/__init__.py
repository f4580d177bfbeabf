"""The conformance suite: laws that every history store keeps, for the stores here and for those of others.

Describe a store as a `Subject` in a variable, and run `python -m agent.history.conformance module:variable`, or each of
`LAWS` with `check` as a test. Each law names the capability that it needs. The suite needs no test framework.
"""

from agent.history.conformance import (
    branches,
    contents,
    deletion,
    events,
    ledgers,
    links,
    lists,
    owners,
    processes,
    queries,
    replicas,
    retention,
    revisions,
    searches,
)
from agent.history.conformance.laws import CAPABILITIES, LAWS, Broken, Capability, Law, law, laws_for
from agent.history.conformance.report import Outcome, check, check_all, report
from agent.history.conformance.trial import Clock, Subject, Trial

LAW_MODULES = (
    contents,
    revisions,
    branches,
    owners,
    lists,
    searches,
    deletion,
    retention,
    events,
    links,
    processes,
    replicas,
    queries,
    ledgers,
)
"""Importing a module adds its laws to `LAWS`."""

__all__ = [
    "CAPABILITIES",
    "LAWS",
    "Broken",
    "Capability",
    "Clock",
    "Law",
    "Outcome",
    "Subject",
    "Trial",
    "check",
    "check_all",
    "law",
    "laws_for",
    "report",
]
