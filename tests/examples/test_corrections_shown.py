from __future__ import annotations

from examples.corrections_shown import describe_corrections


def update(diff: int, **row: object) -> dict[str, object]:
    return {**row, "_time": 7, "_diff": diff}


def test_a_keyed_row_that_changed_shows_only_what_changed() -> None:
    updates = [
        update(1, tailnum="N1", seats=60, engine="jet"),
        update(-1, tailnum="N1", seats=55, engine="jet"),
        update(-1, tailnum="N0", seats=2, engine=None),
        update(1, tailnum="N2", seats=3, engine="jet"),
    ]
    assert describe_corrections(updates, ["tailnum"]) == [
        "- N0: seats 2",
        "~ N1: seats 55 → 60",
        "+ N2: seats 3, engine jet",
    ]


def test_without_a_key_rows_come_and_go() -> None:
    updates = [update(-1, origin="EWR", temp=39.0), update(1, origin="EWR", temp=None)]
    assert describe_corrections(updates, []) == ["- origin EWR, temp 39.0", "+ origin EWR"]


def test_wide_rows_are_cut() -> None:
    row = {f"c{number}": number for number in range(9)}
    assert describe_corrections([update(1, **row)], ["c0"]) == ["+ 0: c1 1, c2 2, c3 3, c4 4, c5 5, c6 6, …"]
