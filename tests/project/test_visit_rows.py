"""The bench of a visit fails for the rows that have become more than a tenth higher."""

from bench.visit import ROWS, START, above, table


def test_rows_above_the_start_are_named() -> None:
    ours = dict.fromkeys(ROWS, 100.0)
    start = {"loaded": 90.0, "requests": 91.0, "typed": 1000.0}
    assert above(ours, start) == [ROWS["loaded"]]
    assert above(ours, {}) == []


def test_table_has_every_row() -> None:
    lines = table({name: 1.4 for name in ROWS}, START).splitlines()
    assert len(lines) == 2 + len(ROWS)
    assert [line.split("|")[2].strip() for line in lines[2:]] == ["1"] * len(ROWS)
    assert START.keys() <= ROWS.keys()
