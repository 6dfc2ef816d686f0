"""Problem files: what each preset says, and one clear sentence for every kind of mistake."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from covertfl.cli import app as cli
from covertfl.decision.problem import FiniteHorizon, QueueProblem
from covertfl.decision.problem_file import parse_problem, read_problem
from covertfl.errors import InvalidInput
from tests.support.same_problem import same_problem

ORACLE = """[oracle]
transition = [[0.8, 0.2, 0.0], [0.3, 0.5, 0.2], [0.0, 0.2, 0.8]]
success    = [0.1, 0.43, 0.95]
"""
COST = """[cost]
privacy  = [1.8, 0.8, 0.3]
learning = { shape = "linear", scale = 0.6, charged = "always" }
"""
QUEUE = """[queue]
arrival_prob   = 0.05
arrival_size   = 4
learning_limit = 3.0
capacity       = "auto"
full_cost      = 0.0
minimise       = "privacy"
"""
HORIZON = """[horizon]
rounds  = 45
updates = 16
"""
QUEUE_FILE = ORACLE + COST + QUEUE
HORIZON_FILE = ORACLE + COST + HORIZON
EVIDENCE = """[evidence]
transition_counts = [[8, 2, 0], [3, 5, 2], [0, 2, 8]]
success_counts    = [[1, 10], [4, 10], [9, 10]]
"""
MATRIX = "[[0.8, 0.2, 0.0], [0.3, 0.5, 0.2], [0.0, 0.2, 0.8]]"
NUMBER = "arrival_prob   = 0.05"


def changed(old: str, new: str, text: str = QUEUE_FILE) -> str:
    """The file with one passage replaced; the passage must be there."""
    assert text.count(old) == 1, old
    return text.replace(old, new)


def fixed(capacity: str, overflow: str = "1.0") -> str:
    return changed('"auto"', f"{capacity}\noverflow_cost = {overflow}")


# What is wrong, the file, and what the message must say after the file's name.
MISTAKES: dict[str, tuple[str | bytes, str]] = {
    # keys
    "unknown section": (QUEUE_FILE + "[extra]\na = 1\n", "unknown key extra; allowed are oracle, "),
    "unknown key above": ("seed = 1\n" + QUEUE_FILE, "unknown key seed; allowed are oracle, cost"),
    "unknown key": (QUEUE_FILE + "colour = 1\n", "[queue] unknown key colour; allowed are arr"),
    "unknown key like a type": (QUEUE_FILE + "interval = 1\n", "[queue] unknown key interval; al"),
    "unknown key inside": (
        changed("scale =", "scales ="),
        "[cost] unknown key learning.scales; allowed are shape, scale, charged, values",
    ),
    "misspelt key": (
        changed("success ", "sucess "),
        "[oracle] unknown key sucess; allowed are transition, success",
    ),
    "key over two lines": (QUEUE_FILE + '"a\\nb" = 1\n', r"[queue] unknown key 'a\nb'; allowed"),
    "endless key": (QUEUE_FILE + "k" * 300 + " = 1\n", "[queue] unknown key 'kkk"),
    "no oracle": (COST + QUEUE, "section [oracle] is missing"),
    "no cost": (ORACLE + QUEUE, "section [cost] is missing"),
    "no success": (changed("success    = [0.1, 0.43, 0.95]\n", ""), "[oracle] key success is miss"),
    "no shape": (changed('shape = "linear", ', ""), "[cost] key learning.shape is missing"),
    "no arrival_size": (changed("arrival_size   = 4\n", ""), "[queue] arrival_size is missing: "),
    "no updates": (changed("updates = 16\n", "", HORIZON_FILE), "[horizon] key updates is missing"),
    "no limit": (
        changed("learning_limit = 3.0\n", ""),
        "[queue] learning_limit is required with minimise = privacy",
    ),
    "empty": ("", "section [oracle] is missing; needed are [oracle], [cost], [queue] or [horizon]"),
    "both": (QUEUE_FILE + HORIZON, "exactly one of [queue] and [horizon] is needed, got both"),
    "neither": (ORACLE + COST, "exactly one of [queue] and [horizon] is needed, got neither"),
    # lengths
    "short success": (
        changed("0.43, 0.95]", "0.43]"),
        "[oracle] success must have one probability for each of the 3 oracle states, got 2",
    ),
    "short privacy": (
        changed("[1.8, 0.8, 0.3]", "[1.8, 0.8]"),
        "[cost] privacy must have one cost for each of the 3 oracle states, got 2",
    ),
    "short row": (
        changed("[0.8, 0.2, 0.0]", "[0.8, 0.2]"),
        "[oracle] transition row 0 must have 3 values, as many as there are rows, got 2",
    ),
    "missing row": (changed(", [0.0, 0.2, 0.8]]", "]"), "[oracle] transition row 0 must have 2 v"),
    "no rows": (changed(MATRIX, "[]"), "[oracle] transition must be square"),
    "flat matrix": (
        changed(MATRIX, "[0.5, 0.5]"),
        "[oracle] transition[0] must be a list, got 0.5",
    ),
    "short table": (
        changed('"linear"', '"table", values = [0.0, 1.0]', fixed("4")),
        "[cost] learning.values must have 5 values, one for each backlog 0..4, got 2",
    ),
    "short terminal table": (
        changed('"linear"', '"table", values = [0.0, 1.0]', HORIZON_FILE),
        "[cost] learning.values must have 17 values, one for each backlog 0..16, got 2",
    ),
    "table without values": (
        changed('"linear"', '"table"', fixed("4")),
        "[cost] learning.values is required with shape = table, got none",
    ),
    "values without table": (
        changed('"linear"', '"linear", values = [0.0]'),
        "[cost] learning.values goes with shape = table only, got shape = linear",
    ),
    "table without capacity": (
        changed('"linear"', '"table", values = [0.0]'),
        '[queue] a learning cost given as a table needs a numeric capacity, got "auto"',
    ),
    # ranges
    "success above 1": (changed("0.95", "1.2"), "[oracle] success[2] must lie in [0, 1], got 1.2"),
    "negative probability": (
        changed("[0.8, 0.2, 0.0]", "[1.3, -0.3, 0.0]"),
        "[oracle] transition row 0 must hold probabilities in [0, 1], got 1.3 in column 0",
    ),
    "row sum": (
        changed("[0.3, 0.5, 0.2]", "[0.3, 0.5, 0.3]"),
        "[oracle] transition row 1 must sum to 1, got 1.1",
    ),
    "arrival_prob above 1": (
        changed("0.05", "1.5"),
        "[queue] arrival_prob must lie in (0, 1], got",
    ),
    "arrival_prob 0": (changed("0.05", "0"), "[queue] arrival_prob must lie in (0, 1], got 0"),
    "negative privacy": (
        changed("[1.8,", "[-1.8,"),
        "[cost] privacy[0] must be a finite number of",
    ),
    "negative scale": (
        changed("scale = 0.6", "scale = -1"),
        "[cost] learning.scale must be a fini",
    ),
    "negative limit": (
        changed("3.0", "-3.0"),
        "[queue] learning_limit must be a finite number of a",
    ),
    "negative overflow": (
        fixed("40", "-1.0"),
        "[queue] overflow_cost must be a finite number of at",
    ),
    "negative full_cost": (
        changed("full_cost      = 0.0", "full_cost = -1"),
        "[queue] full_cost mu",
    ),
    "arrival_size 0": (changed("size   = 4", "size = 0"), "[queue] arrival_size must be "),
    "huge arrival_size": (
        changed("size   = 4", "size = 99999999999999999999"),
        "[queue] arrival_size must be at most 1,000,000,000, got 99999999999999999999",
    ),
    "capacity 0": (fixed("0"), "[queue] capacity must be "),
    "huge capacity": (
        fixed("10000000000"),
        "[queue] capacity must leave at most 10,000,000 states",
    ),
    "rounds 0": (changed("45", "0", HORIZON_FILE), "[horizon] rounds must be "),
    "updates below 0": (changed("16", "-2", HORIZON_FILE), "[horizon] updates must be "),
    "huge rounds": (
        changed("45", "1000000000", HORIZON_FILE),
        "[horizon] rounds and updates must leave at most 300,000,000 states, got 51,000,000,000",
    ),
    "not a number": (changed("0.43", "nan"), "[oracle] success[1] must lie in [0, 1], got nan"),
    "infinite limit": (changed("3.0", "inf"), "[queue] learning_limit must be a finite number of"),
    "nan in transition": (
        changed("[0.8, 0.2, 0.0]", "[nan, 0.2, 0.0]"),
        "[oracle] transition row 0",
    ),
    "infinite scale": (
        changed("scale = 0.6", "scale = inf"),
        "[cost] learning.scale must be a fin",
    ),
    # kinds
    "text for a number": (
        changed("0.05", '"0.05"'),
        "[queue] arrival_prob must be a number, got '0.05'",
    ),
    "text in a list": (changed("0.43", '"x"'), "[oracle] success[1] must be a number, got 'x'"),
    "endless text": (
        changed("0.05", f'"{"x" * 300}"'),
        "[queue] arrival_prob must be a number, got",
    ),
    "true for a number": (
        changed("0.05", "true"),
        "[queue] arrival_prob must be a number, got true",
    ),
    "true for a whole number": (
        changed("size   = 4", "size = true"),
        "[queue] arrival_size must be a whole number, got true",
    ),
    "date for a number": (
        changed("0.05", "2020-01-01"),
        "[queue] arrival_prob must be a number, g",
    ),
    "4.0 for a whole number": (
        changed("size   = 4", "size = 4.0"),
        "[queue] arrival_size must be a whole number, got 4.0",
    ),
    "45.5 rounds": (
        changed("45", "45.5", HORIZON_FILE),
        "[horizon] rounds must be a whole number, got 45.5",
    ),
    "capacity 40.0": (fixed("40.0"), '[queue] capacity must be a whole number or "auto", got 40.0'),
    "capacity Auto": (
        changed('"auto"', '"Auto"'),
        "[queue] capacity must be a whole number or \"auto\", got 'Auto'",
    ),
    "a number for a section": (
        "oracle = 3\n" + COST + QUEUE,
        "oracle must be a table of keys, got 3",
    ),
    "text for the cost": (
        changed('{ shape = "linear", scale = 0.6, charged = "always" }', '"linear"'),
        "[cost] learning must be a table of keys, got 'linear'",
    ),
    "shape": (
        changed('"linear"', '"cubic"'),
        "[cost] learning.shape must be constant or linear or quadratic or triangular or table, "
        "got 'cubic'",
    ),
    "charged": (
        changed('"always"', '"never"'),
        "[cost] learning.charged must be always or when-obfuscating, got 'never'",
    ),
    "minimise": (
        changed('"privacy"', '"both"'),
        "[queue] minimise must be privacy or learning, got 'both'",
    ),
    # what does not go together
    "capacity without overflow_cost": (
        changed('"auto"', "40"),
        "[queue] overflow_cost, the cost of a lost update, is required with capacity = 40",
    ),
    "learning_limit when learning is minimised": (
        changed('"privacy"', '"learning"'),
        "[queue] learning_limit does not go with minimise = learning: give privacy_limit",
    ),
    "privacy_limit when privacy is minimised": (
        QUEUE_FILE + "privacy_limit = 1.0\n",
        "[queue] privacy_limit does not go with minimise = privacy: give learning_limit",
    ),
    "no privacy_limit": (
        changed("learning_limit = 3.0\n", "", changed('"privacy"', '"learning"')),
        "[queue] privacy_limit is required with minimise = learning",
    ),
    "charged in a horizon": (
        changed('"always"', '"when-obfuscating"', HORIZON_FILE),
        "[cost] learning.charged = when-obfuscating is for queue problems",
    ),
    "reducible oracle": (
        changed("[0.8, 0.2, 0.0]", "[1.0, 0.0, 0.0]"),
        "[oracle] transition must let every state be reached from every other for a long-run "
        "average, but state 1 cannot be reached from state 0",
    ),
    # evidence
    "short counts": (
        QUEUE_FILE + changed("[[8, 2, 0], [3, 5, 2], [0, 2, 8]]", "[[1]]", EVIDENCE),
        "[evidence] transition_counts must be 3 rows of 3 counts, got [[1]]",
    ),
    "short success counts": (
        QUEUE_FILE + changed(", [9, 10]]", "]", EVIDENCE),
        "[evidence] success_counts must be 3 pairs of successes and trials, got 2",
    ),
    "negative count": (
        QUEUE_FILE + changed("[[8,", "[[-8,", EVIDENCE),
        "[evidence] transition_counts[0][0] must be at least 0, got -8",
    ),
    "three of a pair": (
        QUEUE_FILE + changed("[4, 10]", "[4, 10, 3]", EVIDENCE),
        "[evidence] success_counts[1] must be a pair, got [4, 10, 3]",
    ),
    "more successes than trials": (
        QUEUE_FILE + changed("[4, 10]", "[14, 10]", EVIDENCE),
        "[evidence] success_counts[1] must not have more successes than trials, got 14 of 10",
    ),
    # text
    "broken": (QUEUE_FILE + "x = = 3\n", "not valid TOML: "),
    "twice": (QUEUE_FILE + "capacity = 3\n", "not valid TOML: Cannot overwrite a value"),
    "too deep": (
        "a = " + "[" * 3000 + "]" * 3000 + "\n",
        "not valid TOML: lists nested too deeply",
    ),
    "not UTF-8": (
        QUEUE_FILE.encode() + "# café\n".encode("latin-1"),
        "a problem file must be UTF-8 text, got the byte 0xe9 in line 14",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence_and_status_2(
    mistake: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    content, expected = MISTAKES[mistake]
    path = tmp_path / "problem.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InvalidInput) as refusal:
        read_problem(path)
    assert str(refusal.value).startswith(f"{path}: {expected}")

    monkeypatch.setattr(sys, "argv", ["covertfl", "solve", str(path)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out, err = capsys.readouterr()
    assert stop.value.code == 2
    assert out == ""
    assert err == f"covertfl: {refusal.value}\n"
    assert err.count("\n") == 1
    assert len(err) < len(str(path)) + 250
    assert "Input should" not in err and "Traceback" not in err


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"nothing\.toml: no such file"):
        read_problem(tmp_path / "nothing.toml")
    with pytest.raises(InvalidInput, match="cannot be read: Is a directory"):
        read_problem(tmp_path)


def test_the_correct_files_are_correct(tmp_path: Path) -> None:
    """The mistakes above are made in files that are fine otherwise."""
    queue = parse_problem(QUEUE_FILE, "file").problem
    assert isinstance(queue, QueueProblem)
    assert (queue.capacity, queue.overflow_cost, queue.full_cost) == (None, None, 0.0)
    assert (queue.arrival_prob, queue.arrival_size, queue.limit) == (0.05, 4, 3.0)
    horizon = parse_problem(HORIZON_FILE, "file").problem
    assert isinstance(horizon, FiniteHorizon)
    assert (horizon.rounds, horizon.updates) == (45, 16)
    loaded = parse_problem(HORIZON_FILE + EVIDENCE, "file")
    assert loaded.evidence is not None
    assert loaded.evidence.transition_counts.tolist() == [[8, 2, 0], [3, 5, 2], [0, 2, 8]]
    assert loaded.evidence.success_counts.tolist() == [[1, 10], [4, 10], [9, 10]]
    path = tmp_path / "windows.toml"
    path.write_bytes(b"\xef\xbb\xbf" + QUEUE_FILE.replace("\n", "\r\n").encode())
    assert same_problem(read_problem(path).problem, queue)


def test_numbers_may_be_written_without_a_point() -> None:
    """1 is a number as good as 1.0; only a whole number may not have a point."""
    text = changed("3.0", "3", changed("[1.8, 0.8, 0.3]", "[2, 1, 0]"))
    problem = parse_problem(text, "file").problem
    assert problem.privacy_cost.tolist() == [2.0, 1.0, 0.0]


def test_defaults_and_the_mirrored_problem() -> None:
    shortest = (
        ORACLE + COST + "[queue]\narrival_prob = 0.05\narrival_size = 4\nlearning_limit = 3.0\n"
    )
    assert same_problem(
        parse_problem(shortest, "file").problem, parse_problem(QUEUE_FILE, "file").problem
    )
    mirrored = parse_problem(
        changed('"privacy"', '"learning"', changed("learning_limit", "privacy_limit")), "file"
    ).problem
    assert isinstance(mirrored, QueueProblem)
    assert (mirrored.objective, mirrored.limit, mirrored.limit_name) == (
        "learning",
        3.0,
        "privacy_limit",
    )
