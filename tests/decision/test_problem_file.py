"""Problem files: what they are read as, and one table of files that are refused in a sentence."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import tomli_w

import covertfl as cf
from covertfl.api.problem import describe_problem
from covertfl.decision.problem_file import build_problem, parse_problem, read_problem
from covertfl.decision.states import OracleStates
from tests.support.commands import QUEUE_FILE, Run, refuse
from tests.support.same_problem import same_problem

START = QUEUE_FILE[: QUEUE_FILE.index("[queue]")]
HORIZON_FILE = START + "[horizon]\nrounds  = 45\nupdates = 16\n"
EVIDENCE = """
[evidence]
transition_counts = [[8, 2, 0], [3, 5, 2], [0, 2, 8]]
success_counts    = [[1, 10], [4, 10], [9, 10]]
"""
STATES = """
[states]
column        = "clients"
cuts          = [7.0, 12.0]
participation = [5, 9, 17]
examples      = [3442.5, 6423.8, 12155.7]
min_examples  = 6800.0
"""
SIZES_FILE = """
[oracle]
transition = [[0.8, 0.2, 0.0], [0.3, 0.5, 0.2], [0.0, 0.2, 0.8]]
success    = [0.1, 0.43, 0.95]
[cost]
privacy  = [1.8, 0.8, 0.3]
learning = { shape = "linear", scale = 0.6, by_state = [1, 0.5, 2.0] }
[queue]
arrival_sizes  = { 4 = 0.02, 1 = 0.05 }
learning_limit = 3.0
"""
MATRIX = "[[0.8, 0.2, 0.0], [0.3, 0.5, 0.2], [0.0, 0.2, 0.8]]"
LEARNING = '{ shape = "linear", scale = 0.6, charged = "always" }'


def change(old: str, new: str, text: str = QUEUE_FILE) -> str:
    """The file with one passage replaced; the passage must be there."""
    assert text.count(old) == 1, old
    return text.replace(old, new)


def in_horizon(old: str, new: str) -> str:
    return change(old, new, HORIZON_FILE)


def in_evidence(old: str, new: str) -> str:
    return QUEUE_FILE + change(old, new, EVIDENCE)


def in_states(old: str, new: str) -> str:
    return QUEUE_FILE + change(old, new, STATES)


def in_sizes(old: str, new: str) -> str:
    return change(old, new, SIZES_FILE)


def bounded(capacity: str, overflow: str = "1.0") -> str:
    return change('"auto"', f"{capacity}\noverflow_cost = {overflow}")


# The file, and what the sentence says after its name.
BAD_FILES: list[tuple[str | bytes, str]] = [
    # keys
    (QUEUE_FILE + "[extra]\na = 1\n", "unknown key extra; allowed are oracle, "),
    ("seed = 1\n" + QUEUE_FILE, "unknown key seed; allowed are oracle, cost"),
    (QUEUE_FILE + "colour = 1\n", "[queue] unknown key colour; allowed are arr"),
    (change("scale =", "scales ="), "[cost] unknown key learning.scales; allowed are shape, sc"),
    (change("success ", "sucess "), "[oracle] unknown key sucess; allowed are transition, success"),
    (QUEUE_FILE + '"a\\nb" = 1\n', r"[queue] unknown key 'a\nb'; allowed"),
    (QUEUE_FILE + "k" * 300 + " = 1\n", "[queue] unknown key 'kkk"),
    (QUEUE_FILE[QUEUE_FILE.index("[cost]") :], "section [oracle] is missing"),
    (change("success    = [0.1, 0.43, 0.95]\n", ""), "[oracle] key success is missing"),
    (change('shape = "linear", ', ""), "[cost] key learning.shape is missing"),
    (change("arrival_size   = 4\n", ""), "[queue] arrival_size is missing: "),
    (in_horizon("updates = 16\n", ""), "[horizon] key updates is missing"),
    (change("learning_limit = 3.0\n", ""), "[queue] learning_limit is required with minimise = p"),
    ("", "section [oracle] is missing; needed are [oracle], [cost], [queue] or [horizon]"),
    (QUEUE_FILE + "[horizon]\nrounds = 4\nupdates = 1\n", "exactly one of [queue] and [horizon] "),
    (START, "exactly one of [queue] and [horizon] is needed, got neither"),
    # lengths
    (change("0.43, 0.95]", "0.43]"), "[oracle] success must have one probability for each of the"),
    (change("[1.8, 0.8, 0.3]", "[1.8, 0.8]"), "[cost] privacy must have one cost for each of the"),
    (change("[0.8, 0.2, 0.0]", "[0.8, 0.2]"), "[oracle] transition row 0 must have 3 values, as"),
    (change(", [0.0, 0.2, 0.8]]", "]"), "[oracle] transition row 0 must have 2 values, as many as"),
    (change(MATRIX, "[]"), "[oracle] transition must be square"),
    (change(MATRIX, "[0.5, 0.5]"), "[oracle] transition[0] must be a list, got 0.5"),
    (
        change('"linear"', '"table", values = [0.0, 1.0]', bounded("4")),
        "[cost] learning.values must have 5 values, one for each backlog 0..4, got 2",
    ),
    (
        in_horizon('"linear"', '"table", values = [0.0, 1.0]'),
        "[cost] learning.values must have 17 values, one for each backlog 0..16, got 2",
    ),
    (change('"linear"', '"table"', bounded("4")), "[cost] learning.values is required with shape"),
    (change('"linear"', '"linear", values = [0.0]'), "[cost] learning.values goes with shape = t"),
    (change('"linear"', '"table", values = [0.0]'), "[queue] a learning cost given as a table ne"),
    # ranges
    (change("0.95", "1.2"), "[oracle] success[2] must lie in [0, 1], got 1.2"),
    (change("0.43", "nan"), "[oracle] success[1] must lie in [0, 1], got nan"),
    (change("[0.8, 0.2, 0.0]", "[1.3, -0.3, 0.0]"), "[oracle] transition row 0 must hold probab"),
    (change("[0.3, 0.5, 0.2]", "[0.3, 0.5, 0.3]"), "[oracle] transition row 1 must sum to 1, got"),
    (change("0.05", "1.5"), "[queue] arrival_prob must lie in (0, 1], got 1.5"),
    (change("0.05", "0"), "[queue] arrival_prob must lie in (0, 1], got 0"),
    (change("[1.8,", "[-1.8,"), "[cost] privacy[0] must be a finite number of at least 0, got -1"),
    (change("scale = 0.6", "scale = inf"), "[cost] learning.scale must be a finite number of at"),
    (change("3.0", "-3.0"), "[queue] learning_limit must be a finite number of at least 0, got -3"),
    (bounded("40", "-1.0"), "[queue] overflow_cost must be a finite number of at least 0, got -1"),
    (change("cost      = 0.0", "cost = -1"), "[queue] full_cost must be a finite number of at l"),
    (change("size   = 4", "size = 0"), "[queue] arrival_size must be "),
    (change("size   = 4", "size = 99999999999999999999"), "[queue] arrival_size must be at most 1"),
    (bounded("0"), "[queue] capacity must be "),
    (bounded("10000000000"), "[queue] capacity must leave at most 10,000,000 states"),
    (in_horizon("45", "0"), "[horizon] rounds must be "),
    (in_horizon("16", "-2"), "[horizon] updates must be "),
    (in_horizon("45", "1000000000"), "[horizon] rounds and updates must leave at most 300,000,000"),
    # kinds
    (change("0.05", '"0.05"'), "[queue] arrival_prob must be a number, got '0.05'"),
    (change("0.43", '"x"'), "[oracle] success[1] must be a number, got 'x'"),
    (change("0.05", f'"{"x" * 300}"'), "[queue] arrival_prob must be a number, got"),
    (change("0.05", "true"), "[queue] arrival_prob must be a number, got true"),
    (change("0.05", "2020-01-01"), "[queue] arrival_prob must be a number, got"),
    (change("size   = 4", "size = true"), "[queue] arrival_size must be a whole number, got true"),
    (change("size   = 4", "size = 4.0"), "[queue] arrival_size must be a whole number, got 4.0"),
    (in_horizon("45", "45.5"), "[horizon] rounds must be a whole number, got 45.5"),
    (bounded("40.0"), '[queue] capacity must be a whole number or "auto", got 40.0'),
    (change('"auto"', '"Auto"'), "[queue] capacity must be a whole number or \"auto\", got 'Auto'"),
    ("oracle = 3\n", "oracle must be a table of keys, got 3"),
    (change(LEARNING, '"linear"'), "[cost] learning must be a table of keys, got 'linear'"),
    (
        change('"linear"', '"cubic"'),
        "[cost] learning.shape must be one of constant, linear, quadratic",
    ),
    (change('"always"', '"never"'), "[cost] learning.charged must be one of always, when"),
    (
        change('"privacy"', '"both"'),
        "[queue] minimise must be one of privacy, learning, got 'both'",
    ),
    # what does not go together
    (
        change('"auto"', "40"),
        "[queue] overflow_cost, the cost of a lost update, is required with c",
    ),
    (change('"privacy"', '"learning"'), "[queue] learning_limit does not go with minimise = learn"),
    (QUEUE_FILE + "privacy_limit = 1.0\n", "[queue] privacy_limit does not go with minimise = pri"),
    (
        change("learning_limit = 3.0\n", "", change('"privacy"', '"learning"')),
        "[queue] privacy_limit is required with minimise = learning",
    ),
    (in_horizon('"always"', '"when-obfuscating"'), "[cost] learning.charged = when-obfuscating is"),
    (
        change("[0.8, 0.2, 0.0]", "[1.0, 0.0, 0.0]"),
        "[oracle] transition must let every state be reached from every other for a long-run "
        "average, but state 1 cannot be reached from state 0",
    ),
    # evidence
    (in_evidence("[[8, 2, 0], [3, 5, 2], [0, 2, 8]]", "[[1]]"), "[evidence] transition_counts"),
    (in_evidence(", [9, 10]]", "]"), "[evidence] success_counts must be 3 pairs of successes and"),
    (in_evidence("[[8,", "[[-8,"), "[evidence] transition_counts[0][0] must be at least 0, got -8"),
    (in_evidence("[4, 10]", "[4, 10, 3]"), "[evidence] success_counts[1] must be a list with at m"),
    (in_evidence("[4, 10]", "[14, 10]"), "[evidence] success_counts[1] must not have more success"),
    # arrivals of several sizes, costs by state
    (in_sizes("4 =", "x ="), "[queue] a size in arrival_sizes must be a whole number in 1.."),
    (in_sizes("4 =", "0 ="), "[queue] a size in arrival_sizes must be a whole number in 1.."),
    (in_sizes("4 =", "99999999999 ="), "[queue] a size in arrival_sizes must be"),
    (in_sizes("{ 4 = 0.02, 1 = 0.05 }", "0.1"), "[queue] arrival_sizes must be a table of"),
    (in_sizes("0.02", '"a"'), "[queue] arrival_sizes.'4' must be a number, got 'a'"),
    (in_sizes("0.02", "0.96"), "[queue] arrival_sizes must sum to at most 1"),
    (in_sizes("[queue]", "[queue]\narrival_prob = 0.1"), "[queue] arrival_sizes takes the place"),
    (in_sizes("[1, 0.5, 2.0]", "[1, 2]"), "[cost] learning.by_state must have one factor for each"),
    (in_sizes("[1, 0.5, 2.0]", "[1, -2, 1]"), "[cost] learning.by_state[1] must be a finite numb"),
    (in_sizes("[1, 0.5, 2.0]", "[[1], [1], [1]]"), "[cost] learning.by_state[0] must be a number"),
    (in_sizes("[1, 0.5, 2.0]", "2"), "[cost] learning.by_state must be a list, got 2"),
    (
        SIZES_FILE[: SIZES_FILE.index("[queue]")] + "[horizon]\nrounds = 9\nupdates = 2\n",
        "[cost] learning.by_state is for queue problems",
    ),
    # what states stand for
    (QUEUE_FILE + "[states]\ncolumn = 'x'\ncuts = [1.0]\n", "[states] cuts must be 2 numbers, one"),
    (in_states("[7.0, 12.0]", "[7.0]"), "[states] participation must have 2 numbers"),
    (in_states("cuts          = [7.0, 12.0]", ""), "[states] key cuts is missing"),
    (in_states("[7.0, 12.0]", "[12.0, 7.0]"), "[states] cuts must increase"),
    (in_states("[7.0, 12.0]", "[7.0, inf]"), "[states] cuts must be one or more finite numbers"),
    (in_states("[5, 9, 17]", "[5, 6, 17]"), "[states] participation[1] "),
    (in_states("[5, 9, 17]", "[5, 9]"), "[states] participation must have 3 numbers"),
    (in_states("[5, 9, 17]", "[5, 9, 17.5]"), "[states] participation[2] must be a whole number"),
    (in_states("[3442.5, ", "[-1.0, "), "[states] examples must be finite and at least 0"),
    (in_states("6800.0", "0.0"), "[states] min_examples must be a finite number above 0"),
    (in_states('"clients"', "3"), "[states] column must be text, got 3"),
    (in_states("min_examples", "least"), "[states] unknown key least; allowed are column, cuts"),
    # text
    (QUEUE_FILE + "x = = 3\n", "not valid TOML: "),
    (QUEUE_FILE + "capacity = 3\n", "not valid TOML: Cannot overwrite a value"),
    ("a = " + "[" * 3000 + "]" * 3000 + "\n", "not valid TOML: lists nested too deeply"),
    (
        QUEUE_FILE.encode() + "# café\n".encode("latin-1"),
        "a problem file must be UTF-8 text, got the byte 0xe9 in line 16",
    ),
]


@pytest.mark.parametrize(("content", "sentence"), BAD_FILES)
def test_bad_files_are_refused(
    content: str | bytes, sentence: str, tmp_path: Path, run: Run
) -> None:
    path = tmp_path / "problem.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    message = refuse(run("solve", path), 2)
    assert message.startswith(f"{path}: {sentence}")
    assert len(message) < len(str(path)) + 250 and "Input should" not in message


def test_files_that_cannot_be_read(tmp_path: Path, run: Run) -> None:
    assert "nothing.toml: no such file" in refuse(run("solve", tmp_path / "nothing.toml"), 2)
    assert "cannot be read: Is a directory" in refuse(run("solve", tmp_path), 2)


def test_what_files_are_read_as(tmp_path: Path) -> None:
    """The mistakes above are made in files that are fine otherwise."""
    queue = parse_problem(QUEUE_FILE, "file").problem
    assert isinstance(queue, cf.QueueProblem)
    assert (queue.capacity, queue.overflow_cost, queue.full_cost) == (None, None, 0.0)
    assert (queue.arrival_prob, queue.arrival_size, queue.limit) == (0.05, 4, 3.0)
    horizon = parse_problem(HORIZON_FILE + EVIDENCE, "file")
    assert isinstance(horizon.problem, cf.FiniteHorizon)
    assert (horizon.problem.rounds, horizon.problem.updates) == (45, 16)
    assert horizon.evidence is not None
    assert horizon.evidence.transition_counts.tolist() == [[8, 2, 0], [3, 5, 2], [0, 2, 8]]
    assert horizon.evidence.success_counts.tolist() == [[1, 10], [4, 10], [9, 10]]
    path = tmp_path / "windows.toml"
    path.write_bytes(b"\xef\xbb\xbf" + QUEUE_FILE.replace("\n", "\r\n").encode())
    assert same_problem(read_problem(path).problem, queue)
    shortest = START + "[queue]\narrival_prob = 0.05\narrival_size = 4\nlearning_limit = 3\n"
    assert same_problem(parse_problem(shortest, "file").problem, queue)
    mirrored = change('"privacy"', '"learning"', change("learning_limit", "privacy_limit"))
    other = parse_problem(mirrored, "file").problem
    assert isinstance(other, cf.QueueProblem)
    assert (other.objective, other.limit, other.limit_name) == ("learning", 3.0, "privacy_limit")


def test_states_are_read_and_written_back() -> None:
    states = parse_problem(QUEUE_FILE + STATES, "problem.toml").states
    assert states == OracleStates(
        "clients", (7.0, 12.0), (5, 9, 17), (3442.5, 6423.8, 12155.7), 6800.0
    )
    assert states is not None and list(states.to_dict()) == re.findall(r"(?m)^(\w+) +=", STATES)
    np.testing.assert_array_equal(states.classify([6, 7, 11, 12]), [0, 1, 1, 2])
    assert parse_problem(QUEUE_FILE, "problem.toml").states is None


def test_sizes_and_costs_by_state_are_read_and_written_back() -> None:
    problem = parse_problem(SIZES_FILE, "file").problem
    assert isinstance(problem, cf.QueueProblem)
    assert problem.arrival_sizes == {1: 0.05, 4: 0.02}
    assert problem.learning_cost.by_state == (1.0, 0.5, 2.0)
    described = describe_problem(problem)
    assert same_problem(problem, parse_problem(tomli_w.dumps(described), "again").problem)
    assert same_problem(problem, build_problem(described, "sections").problem)
