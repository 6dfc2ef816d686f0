"""Policy files: shapes, a round trip in all digits, and a sentence for every mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covertfl.decision.policy import GreedyPolicy, HorizonTable, QueueTable
from covertfl.decision.policy_file import read_policy, write_policy
from covertfl.errors import InvalidInput

QUEUE = [[[0.0, 1 / 3, 1.0], [0.0, 0.1, 1.0]], [[0.0, 1.0, 1.0], [0.0, 1.0, 1.0]]]
HORIZON = [[[0.0, 1.0]], [[0.0, 0.0]], [[0.0, 2 / 3]]]


@pytest.mark.parametrize(
    ("policy", "problem", "table"),
    [
        (QueueTable(np.array(QUEUE)), "queue", QUEUE),
        (HorizonTable(np.array(HORIZON)), "horizon", HORIZON),
        (QueueTable(np.zeros((2, 3, 4))), "queue", np.zeros((2, 3, 4)).tolist()),
    ],
)
def test_a_policy_comes_back_in_all_digits(
    policy: QueueTable | HorizonTable, problem: str, table: Any, tmp_path: Path
) -> None:
    path = tmp_path / "policy.json"
    write_policy(path, policy)
    content = json.loads(path.read_text())
    assert content == {"format": content["format"], "problem": problem, "learn_prob": table}
    for given in (path, str(path)):
        found = read_policy(given)
        assert type(found) is type(policy) and found.table.tolist() == table


def queue_file(learn_prob: object) -> str:
    return json.dumps({"problem": "queue", "learn_prob": learn_prob})


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "a policy file has the keys problem and learn_prob, got []"),
        ('"queue"', "a policy file has the keys problem and learn_prob"),
        ('{"problem": "queue"}', "a policy file has the keys problem and learn_prob, got ['p"),
        (
            '{"problem": "queue", "learn_prob": [], "x": 1}',
            "a policy file has the keys problem and learn_prob",
        ),
        ('{"problem": "both", "learn_prob": []}', "problem must be queue or horizon, got 'both'"),
        ('{"problem": ["queue"], "learn_prob": []}', "problem must be queue or horizon, got ['q"),
        (queue_file([[[0.0, 1.2], [0.0, 1.0]]]), "learn_prob[0][0][1] must lie in [0, 1], got 1.2"),
        (queue_file([[[0.0, -0.5], [0.0, 1.0]]]), "learn_prob[0][0][1] must lie in [0, 1], got -0"),
        (
            '{"problem": "queue", "learn_prob": [[[0, NaN], [0, 1]]]}',
            "learn_prob[0][0][1] must lie",
        ),
        (queue_file([[[1.0, 1.0], [0.0, 1.0]]]), "learn_prob must be 0 at backlog 0"),
        (queue_file([[[0.0, 1.0]]]), "learn_prob must have at least 2 arrival states, got 1"),
        (queue_file([[0.0, 1.0]]), "learn_prob must have 3 levels of lists, got 2"),
        (queue_file([[[0.0, 1.0], [0.0]]]), "learn_prob must be numbers in rows of one length"),
        (
            queue_file([[["x", 1.0], [0.0, 1.0]]]),
            "learn_prob must be numbers in rows of one length",
        ),
        (queue_file({"a": 1}), "learn_prob must be numbers in rows of one length"),
        (queue_file(None), "learn_prob must have 3 levels of lists, got 0"),
        (queue_file([]), "learn_prob must have 3 levels of lists, got 1"),
        (
            json.dumps({"problem": "horizon", "learn_prob": [[[0.5, 1.0]]]}),
            "learn_prob must be 0 at backlog 0",
        ),
    ],
)
def test_mistakes(tmp_path: Path, content: str | bytes, expected: str) -> None:
    path = tmp_path / "policy.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InvalidInput) as refusal:
        read_policy(path)
    message = str(refusal.value)
    assert message.startswith(f"{path}: {expected}")
    assert "\n" not in message and len(message) < len(str(path)) + 150


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no such file, a policy file is needed"):
        read_policy(tmp_path / "nothing.json")
    with pytest.raises(InvalidInput, match="cannot be read: Is a directory"):
        read_policy(tmp_path)


@pytest.mark.parametrize("path", [None, 1, [], b"", "", "a\0b"])
def test_what_names_no_file_is_refused(path: Any) -> None:
    with pytest.raises(InvalidInput, match="path must"):
        read_policy(path)
    with pytest.raises(InvalidInput, match="path must"):
        write_policy(path, QueueTable(QUEUE))


@pytest.mark.parametrize("policy", [None, QUEUE, GreedyPolicy(), QueueTable])
def test_only_tables_are_written(policy: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="policy must be a QueueTable or a HorizonTable, got"):
        write_policy(tmp_path / "policy.json", policy)
    assert not list(tmp_path.iterdir())


def test_a_file_without_a_format_is_read_and_a_newer_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    content = {"problem": "queue", "learn_prob": QUEUE}
    path.write_text(json.dumps(content))
    assert read_policy(path).table.tolist() == QUEUE
    path.write_text(json.dumps({"format": 2, **content, "unheard_of": 1}))
    with pytest.raises(InvalidInput, match=r"policy\.json: .*a newer version wrote the file"):
        read_policy(path)
