"""Summaries of runs: from and to summary.json, key by key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from covertfl.errors import InvalidInput
from covertfl.runs.files import RunSummary, read_summary
from tests.support.run_folders import make_summary
from tests.support.small_runs import HORIZON, QUEUE, run_small

KEYS = [
    "updates_done",
    "rounds",
    "learning_queries",
    "exposure",
    "completed",
    "updates_missing",
    "replies",
    "rejected_replies",
    "rejected_by_reason",
    "average_privacy_cost",
    "mean_wait",
    "little_wait",
    "success_measured",
    "success_printed",
]
CLIENT_KEYS = [
    "learner_accuracy",
    "learner_balanced_accuracy",
    "learner_auc",
    "learner_f1",
    "decoy_accuracy",
]
QUEUE_KEYS = [
    "average_learning_cost",
    "learning_limit",
    "lost_updates",
    "tasks_arrived",
    "tasks_finished",
]


@pytest.mark.parametrize(
    ("base", "keys"),
    [
        (HORIZON, [*CLIENT_KEYS, *KEYS, "seconds"]),
        (QUEUE, [*CLIENT_KEYS, *KEYS, *QUEUE_KEYS, "seconds"]),
    ],
)
def test_the_file_has_the_keys_that_apply_in_order(
    tmp_path: Path, base: dict[str, Any], keys: list[str]
) -> None:
    summary = run_small(tmp_path, base, rounds=8)
    text = (tmp_path / "summary.json").read_text()
    content = json.loads(text)
    assert list(content) == keys
    assert summary.to_dict() == content
    assert json.dumps(summary.to_dict(), indent=2) + "\n" == text
    assert read_summary(str(tmp_path)) == read_summary(tmp_path) == summary


def test_a_limit_on_privacy_stands_where_one_on_learning_would() -> None:
    content = make_summary(average_learning_cost=1.0, privacy_limit=0.5).to_dict()
    assert list(content)[-3:] == ["average_learning_cost", "privacy_limit", "seconds"]


def test_unknown_keys_are_ignored_and_numbers_are_kept_as_they_are() -> None:
    content = {**make_summary().to_dict(), "unheard_of": 1, "exposure": 1}
    again = RunSummary.from_dict(content).to_dict()
    assert again == {key: value for key, value in content.items() if key != "unheard_of"}
    assert type(again["exposure"]) is int


def test_a_missing_key_is_named() -> None:
    content = make_summary().to_dict()
    del content["exposure"]
    with pytest.raises(InvalidInput, match="it has no exposure"):
        RunSummary.from_dict(content)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"rounds": "x"}',
        "nonsense",
        json.dumps({**make_summary().to_dict(), "rounds": "x"}),
    ],
)
def test_a_file_that_is_not_a_summary_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(InvalidInput, match=r"summary\.json (is not|must hold)") as caught:
        read_summary(tmp_path)
    assert "\n" not in str(caught.value)
