"""Reading a log, and every way it can be wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from covertfl.decision.oracle import Oracle
from covertfl.errors import InvalidInput
from covertfl.fitting.log import Gaps, ParticipationLog, read_log
from covertfl.fitting.oracle import fit_oracle

PAPER = Oracle(
    np.array([[0.8, 0.2, 0.0], [0.3, 0.5, 0.2], [0.0, 0.2, 0.8]]), np.array([0.1, 0.43, 0.95])
)


def write(folder: Path, content: str | bytes, name: str = "past.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def make_log(**columns: Sequence[float]) -> ParticipationLog:
    arrays = {name: np.array(values, dtype=np.float64) for name, values in columns.items()}
    rounds = np.arange(1, 1 + len(next(iter(arrays.values()))))
    return ParticipationLog("past.csv", rounds, arrays)


# --- reading -------------------------------------------------------------------------------------


def test_a_log_is_read_column_by_column(tmp_path: Path) -> None:
    path = write(
        tmp_path, "round,clients,examples,success,quality\n7,3,120,true,-0.5\n8,4,0,0,1e2\n"
    )
    log = read_log(path)
    assert log.path == str(path)
    assert log.rounds.tolist() == [7, 8]
    assert {name: values.tolist() for name, values in log.columns.items()} == {
        "clients": [3.0, 4.0],
        "examples": [120.0, 0.0],
        "success": [1.0, 0.0],
        "quality": [-0.5, 100.0],
    }


PLAIN = "round,clients,examples\n1,3,120\n2,4,0\n"


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
    log = read_log(write(tmp_path, content))
    assert log.rounds.tolist() == [1, 2]
    assert log.columns["clients"].tolist() == [3.0, 4.0]
    assert log.columns["examples"].tolist() == [120.0, 0.0]


@pytest.mark.parametrize(
    ("cell", "value"), [("0", 0), ("1", 1), ("true", 1), ("False", 0), ("TRUE", 1), (" 1 ", 1)]
)
def test_success_is_read_in_all_spellings(tmp_path: Path, cell: str, value: int) -> None:
    log = read_log(write(tmp_path, f"round,success\n1,{cell}\n"))
    assert log.columns["success"].tolist() == [value]


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
    ],
)
def test_a_wrong_log_gets_one_sentence(
    tmp_path: Path, content: str | bytes, said: list[str]
) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_log(write(tmp_path, content))
    message = str(caught.value)
    assert all(part in message.replace(str(tmp_path), "") for part in ["past.csv", *said]), message
    assert "\n" not in message
    assert len(message) < 200 + len(str(tmp_path))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"none\.csv: no such file, a participation"):
        read_log(tmp_path / "none.csv")


def test_a_directory_is_not_a_log(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=f"{tmp_path.name}: cannot be read: Is a directory"):
        read_log(tmp_path)


def test_a_file_below_a_file_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"inner\.csv: cannot be read"):
        read_log(write(tmp_path, PLAIN) / "inner.csv")


def test_lines_are_counted_through_quoted_line_breaks(tmp_path: Path) -> None:
    content = 'round,note,clients\n1,"two\nlines",3\n2,x,many\n'
    with pytest.raises(InvalidInput, match=r"line 4: clients .*'many'"):
        read_log(write(tmp_path, content))


def test_a_column_of_text_is_set_aside_until_it_is_asked_for(tmp_path: Path) -> None:
    content = "round,date,clients,success\n1,2024-01-01,3,0\n2,,9,1\n3,2024-01-03,3,0\n"
    log = read_log(write(tmp_path, content))
    assert list(log.columns) == ["clients", "success"]
    assert fit_oracle(log, num_states=2).visits.tolist() == [2, 1]
    with pytest.raises(InvalidInput, match=r"past\.csv line 2: date .*'2024-01-01'"):
        fit_oracle(log, column="date")


# --- gaps and blank cells -----------------------------------------------------------------------

GAPS: tuple[Gaps, ...] = ("refuse", "skip")
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


def test_a_gap_is_refused_with_the_option_that_skips_it(tmp_path: Path) -> None:
    for content, said in (
        ("round,clients\n1,3\n2,4\n4,4\n", "line 4: round 3 is missing"),
        ("round,clients\n1,3\n2,\n3,4\n", "line 3: clients must be a number, got a blank cell"),
        ("round,clients\n1,3\n\n2,4\n", "line 3: blank"),
    ):
        path = write(tmp_path, content)
        with pytest.raises(InvalidInput, match=r"gaps = skip \(--gaps skip\)") as caught:
            read_log(path)
        assert said in str(caught.value)
    with pytest.raises(InvalidInput, match="gaps must be refuse or skip, got 'drop'"):
        read_log(path, gaps="drop")  # type: ignore[arg-type]


def test_gaps_are_skipped_and_named(tmp_path: Path) -> None:
    log = read_log(write(tmp_path, GAPPY), gaps="skip")
    assert log.rounds.tolist() == [1, 2, 3, 6, 7, 8, 9, 10]
    # By clients and examples, rounds 7 and 8 are blank: states 0 1 2 | 1 | 2 0 of 1 2 3 6 9 10.
    fitted = fit_oracle(log, cuts=(8, 15), min_examples=50)
    assert fitted.states.tolist() == [0, 1, 2, 1, 2, 0]
    assert fitted.transition_counts.tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0]]
    assert fitted.success_counts.tolist() == [[1, 2], [1, 2], [2, 2]]
    assert fitted.skipped.missing == ((4, 5),)
    assert fitted.skipped.blank == ((7, "clients"), (8, "examples"))
    assert fitted.skipped.sentence == (
        "Skipped 2 rounds without a line (4 to 5) and 2 rounds with a blank cell (clients of "
        "round 7, examples of round 8); no transition is counted across a gap."
    )
    # With the column success, round 2 is blank and round 8 is not.
    by_success = fit_oracle(log, cuts=(15,))
    assert by_success.skipped.blank == ((2, "success"), (7, "clients"))
    assert by_success.num_rounds == 6
    assert by_success.transition_counts.tolist() == [[0, 1], [1, 0]]


def test_a_whole_log_is_fitted_alike_however_gaps_are_treated(tmp_path: Path) -> None:
    path = write(tmp_path, "round,clients,success\n1,3,0\n2,9,1\n3,2,0\n4,3,1\n5,8,1\n6,1,0\n")
    plain, skipping = (fit_oracle(read_log(path, gaps=gaps), num_states=2) for gaps in GAPS)
    assert plain.transition_counts.tolist() == skipping.transition_counts.tolist()
    assert plain.markov == skipping.markov
    assert skipping.skipped.sentence is None
    assert (plain.meaning.gaps, skipping.meaning.gaps) == (None, "skip")


def test_states_that_only_gaps_follow_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "round,clients,success\n1,3,0\n2,9,1\n4,3,0\n5,9,1\n7,3,1\n")
    with pytest.raises(InvalidInput, match="only in the last round or before missing rounds"):
        fit_oracle(read_log(path, gaps="skip"), num_states=2)
    blank = write(tmp_path, "round,clients,success\n1,,0\n2,,1\n")
    with pytest.raises(InvalidInput, match="every round has a blank cell in one of clients, succe"):
        fit_oracle(read_log(blank, gaps="skip"), num_states=2)
