"""Reading a log, and every way it can be wrong."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

import covertfl as cf
from tests.support.commands import Run, refuse
from tests.support.participation import fit_text


def test_a_log_is_read_column_by_column() -> None:
    """States by any column, successes in any spelling, from any first round."""
    text = "round,clients,quality,success\n7,3,-0.5,true\n8,4,1e2,0\n9,3,-1,FALSE\n10,4,7, 1 \n"
    found = fit_text(text, column="quality", cuts=(0.0,)).details
    assert found.states.tolist() == [0, 1, 0, 1]
    assert found.succeeded.tolist() == [True, False, False, True]
    assert fit_text(text, cuts=(4,)).details.states.tolist() == [0, 1, 0, 1]


PLAIN = "round,clients,examples\n1,3,120\n2,4,0\n3,3,7\n"


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + PLAIN.encode(),
        PLAIN.replace("\n", "\r\n").encode(),
        PLAIN.replace("\n", "\r").encode(),
        PLAIN.encode() + b"\n\n  \n\r\n",
        PLAIN.rstrip("\n").encode(),
        PLAIN.replace(",", " , ").encode(),
        PLAIN.replace("3", '"3"').encode(),
        PLAIN.replace("120", "1.2e2").encode(),
    ],
    ids=["bom", "crlf", "cr", "blank end", "no newline", "spaces", "quotes", "exponent"],
)
def test_harmless_variations_read_the_same(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "past.csv"
    path.write_bytes(content)
    found = cf.fit(path, cuts=(4,), min_examples=7).details
    assert found.states.tolist() == [0, 1, 0]
    assert found.succeeded.tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", ["is empty"]),
        ("\n \r\n", ["is empty"]),
        ("round,clients,examples\n", ["header only"]),
        ("clients,examples\n3,1\n", ["line 1", "round", "clients, examples"]),
        ("\nround,clients\n1,3\n", ["line 1"]),
        ("round;clients\n1;3\n", ["line 1", "round;clients"]),
        ("round,clients,\n1,3,4\n", ["line 1", "column 3"]),
        ("round,clients,clients\n1,3,4\n", ["line 1", "clients", "twice", "2 and 3"]),
        ("round,clients\n1,3\n2,many\n", ["line 3", "clients", "'many'"]),
        ("round,clients\n1,3\n2,1_000\n", ["line 3", "clients", "'1_000'"]),
        ("round,clients\none,3\n", ["line 2", "round", "'one'"]),
        ("round,quality\n1,0.5\n2,good\n", ["line 3", "quality", "'good'"]),
        ("round,quality\n1,good\n2,0.5\n", ["line 2", "quality", "'good'"]),
        ("round,clients\n1,nan\n", ["line 2", "clients", "finite", "'nan'"]),
        ("round,quality\n1,0\n2,-inf\n", ["line 3", "quality", "finite", "'-inf'"]),
        ("round,clients\n1,\n", ["line 2", "clients", "blank"]),
        ("round,quality\n1, \n2,1\n", ["line 2", "quality", "blank"]),
        ("round,success\n1, \n", ["line 2", "success", "blank"]),
        ("round,clients\n1,3\n\n2,4\n", ["line 3", "blank"]),
        ("round,clients,examples\n1,3\n", ["line 2", "3 columns", "got 2", "examples is missing"]),
        ("round,clients\n1,3\n2,3,4\n", ["line 3", "2 columns", "got 3"]),
        ("round,clients\n1,3\n2,4\n4,4\n", ["line 4", "round 3 is missing"]),
        ("round,clients\n1,3\n5,4\n", ["line 3", "rounds 2 to 4 are missing"]),
        ("round,clients\n1,3\n2,4\n2,4\n", ["line 4", "round 2", "twice", "line 3"]),
        ("round,clients\n1,3\n2,4\n3,4\n1,4\n", ["line 5", "round 1", "twice", "line 2"]),
        (
            "round,clients\n3,3\n2,4\n1,4\n",
            ["line 3", "go up by one", "round 2 comes after round 3"],
        ),
        (
            "round,clients\n1,3\n3,4\n2,4\n",
            ["line 3", "go up by one", "round 3 comes after round 1"],
        ),
        ("round,clients\n1.5,3\n", ["line 2", "round", "whole", "'1.5'"]),
        ("round,clients\n1e300,3\n", ["line 2", "round", "whole", "'1e300'"]),
        ("round,clients\n-1,3\n", ["line 2", "round", "negative", "'-1'"]),
        ("round,clients\n1,-3\n", ["line 2", "clients", "negative", "'-3'"]),
        ("round,examples\n1,-3\n", ["line 2", "examples", "negative", "'-3'"]),
        ("round,arrival\n1,-4\n", ["line 2", "arrival", "negative", "'-4'"]),
        ("round,arrival\n1,0.5\n", ["line 2", "arrival", "whole", "'0.5'"]),
        ("round,success\n1,1\n2,2\n", ["line 3", "success", "0, 1, true or false", "'2'"]),
        ("round,success\n1,yes\n", ["line 2", "success", "'yes'"]),
        ('round,clients\n1,3\n2,"4\n', ["line 3", "CSV"]),
        (b"round,clients\n1,3\n2,\xff\n", ["line 3", "UTF-8", "0xff"]),
        (PLAIN.encode("utf-16"), ["line 1", "UTF-8"]),
        ("round,clients\n1," + "x" * 999 + "\n", ["line 2", "clients", "'xxx", "..."]),
        # Lines are counted through quoted line breaks.
        ('round,note,clients\n1,"two\nlines",3\n2,x,many\n', ["line 4: clients", "'many'"]),
        ("round,clients\n1,3\n2,4\n4,4\n", ["line 4: round 3 is missing", "gaps = skip (--gaps"]),
        ("round,clients\n1,3\n2,\n3,4\n", ["got a blank cell", "gaps = skip (--gaps skip)"]),
        ("round,examples\n1,4\n2,5\n", ["has no column clients"]),
        ("round,clients\n1,4\n2,5\n3,4\n4,5\n", ["has no column examples"]),
        ("round,clients,examples\n1,5,5\n2,5,6\n", ["clients is 5 in every round"]),
    ],
)
def test_a_wrong_log_gets_one_sentence(
    tmp_path: Path, run: Run, content: str | bytes, said: list[str]
) -> None:
    path, problem = tmp_path / "past.csv", tmp_path / "problem.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    message = refuse(run("fit", path, "--states", "2", "--min-examples", "5", "-o", problem), 2)
    assert message.startswith(str(path)) and len(message) < 200 + len(str(tmp_path))
    assert all(part in message.replace(str(tmp_path), "") for part in said), message
    assert not problem.exists()


def test_files_that_are_no_log(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "past.csv"
    path.write_text(PLAIN)
    for wrong, said in (
        (tmp_path / "none.csv", "none.csv: no such file, a participation"),
        (tmp_path, f"{tmp_path.name}: cannot be read: Is a directory"),
        (path / "inner.csv", "inner.csv: cannot be read"),
    ):
        assert said in refuse(run("fit", wrong), 2)


def test_a_column_of_text_is_set_aside_until_it_is_asked_for() -> None:
    content = "round,date,clients,success\n1,2024-01-01,3,0\n2,,9,1\n3,2024-01-03,3,0\n"
    assert fit_text(content, states=2).details.visits.tolist() == [2, 1]
    with pytest.raises(cf.InvalidInput, match=r"past\.csv line 2: date .*'2024-01-01'"):
        fit_text(content, column="date")


# --- gaps and blank cells -----------------------------------------------------------------------

GAPPY = (
    "round,time,clients,examples,success,arrival,note\n"
    "1,2024-01-01T00:00,3,10,0,0,a\n"
    "2,2024-01-01T01:00,8,50,,4,\n"  # blank, and not needed with min_examples
    "3,2024-01-01T02:00,15,90,1,0,b\n"
    ",,,,,,\n"
    "6,2024-01-01T05:00,14,49,1,0,c\n"
    "7,2024-01-01T06:00,,60,1,0,\n"
    "8,2024-01-01T07:00,2,,0,4,d\n"
    "9,2024-01-01T08:00,20,80,1,0,e\n"
    "10,2024-01-01T09:00,3,80,1,0,e\n"
)


def test_gaps_are_skipped_and_named() -> None:
    # By clients and examples, rounds 7 and 8 are blank: states 0 1 2 | 1 | 2 0 of 1 2 3 6 9 10.
    fitted = fit_text(GAPPY, gaps="skip", cuts=(8, 15), min_examples=50)
    assert fitted.to_dict()["skipped"] == {
        "missing": [[4, 5]],
        "blank": [{"round": 7, "column": "clients"}, {"round": 8, "column": "examples"}],
    }
    details = fitted.details
    assert details.states.tolist() == [0, 1, 2, 1, 2, 0]
    assert details.transition_counts.tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0]]
    assert details.success_counts.tolist() == [[1, 2], [1, 2], [2, 2]]
    assert details.skipped.sentence == (
        "Skipped 2 rounds without a line (4 to 5) and 2 rounds with a blank cell (clients of "
        "round 7, examples of round 8); no transition is counted across a gap."
    )
    # With the column success, round 2 is blank and round 8 is not.
    by_success = fit_text(GAPPY, gaps="skip", cuts=(15,)).details
    assert by_success.skipped.blank == ((2, "success"), (7, "clients"))
    assert by_success.num_rounds == 6
    assert by_success.transition_counts.tolist() == [[0, 1], [1, 0]]


def test_a_whole_log_is_fitted_alike_however_gaps_are_treated() -> None:
    content = "round,clients,success\n1,3,0\n2,9,1\n3,2,0\n4,3,1\n5,8,1\n6,1,0\n"
    plain, skipping = (fit_text(content, gaps=gaps, states=2) for gaps in ("refuse", "skip"))
    assert plain.details.transition_counts.tolist() == skipping.details.transition_counts.tolist()
    assert plain.details.markov == skipping.details.markov
    assert skipping.details.skipped.sentence is None
    states = [tomllib.loads(one.format_problem())["states"] for one in (plain, skipping)]
    assert [each.get("gaps") for each in states] == [None, "skip"]


@pytest.mark.parametrize(
    ("content", "gaps", "said"),
    [
        (
            "1,3,0\n2,9,1\n4,3,0\n5,9,1\n7,3,1\n",
            "skip",
            "only in the last round or before missing rounds",
        ),
        ("1,,0\n2,,1\n", "skip", "every round has a blank cell in one of clients, success"),
        ("1,3,0\n2,9,1\n", "drop", "gaps must be refuse or skip, got 'drop'"),
    ],
)
def test_gaps_that_leave_too_little(content: str, gaps: str, said: str) -> None:
    with pytest.raises(cf.InvalidInput, match=said):
        fit_text("round,clients,success\n" + content, gaps=gaps, states=2)


def test_a_long_log_with_gaps_from_the_command(run: Run, tmp_path: Path) -> None:
    """400 hourly rounds with a gap of ten and a blank cell."""
    generator, log = np.random.default_rng(3), tmp_path / "log.csv"
    rows = ["round,time,clients,examples"]
    for number in range(1, 401):
        day, hour = divmod(number, 24)
        clients = max(round(10 + 4 * np.sin(np.pi * hour / 12) + generator.normal(scale=3)), 0)
        examples = "" if number == 50 else str(400 * clients)
        rows.append(f"{number},2024-01-{1 + day:02}T{hour:02}:00,{clients},{examples}")
    log.write_text("\n".join(rows[:101] + rows[111:]) + "\n")
    given = ("fit", log, "--min-examples", 4000)
    assert "line 51: examples must be a number, got a blank cell; gaps = skip" in (
        refuse(run(*given), 2)
    )
    outcome = run(*given, "--gaps", "skip", "-o", tmp_path / "problem.toml")
    assert "Skipped 10 rounds without a line (101 to 110) and 1 round with a blank cell" in (
        outcome.out
    )
    assert tomllib.loads((tmp_path / "problem.toml").read_text())["states"]["gaps"] == "skip"
    content = run(*given, "--gaps", "skip", "--json").content
    assert content["rounds"] == 389
    assert np.sum(content["transition_counts"]) == 389 - 1 - 2
