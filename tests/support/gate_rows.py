"""Chooses which rows of a table of cases the gate runs."""

from collections.abc import Collection, Mapping
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def gate_rows(cases: Mapping[str, Any], gate: Collection[str]) -> list[ParameterSet]:
    """Return the cases for `parametrize`, with their names as ids. `make test` runs those named in `gate` only."""
    assert set(gate) <= set(cases), f"there are no cases {set(gate) - set(cases)}"
    marks = {name: () if name in gate else (pytest.mark.full,) for name in cases}
    values = {name: case if isinstance(case, tuple) else (case,) for name, case in cases.items()}
    return [pytest.param(*values[name], id=name, marks=marks[name]) for name in cases]
