"""What the tests of audits share: recorded public folders, and audits with invented numbers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
from safetensors.numpy import save

from covertfl.auditing.run import RunAudit
from covertfl.auditing.summary import AuditSummary
from covertfl.auditing.threats import Finding, Threat
from covertfl.eavesdroppers.registry import EAVESDROPPERS
from covertfl.kernels.weights import name_content
from covertfl.runs.summary import RunSummary

SUMMARY = RunSummary(
    learner_accuracy=0.9,
    updates_done=3,
    rounds=6,
    learning_queries=3,
    exposure=0.5,
    completed=True,
    updates_missing=0,
    rejected_replies=0,
    rejected_by_reason={},
    average_privacy_cost=0.0,
    mean_wait=None,
    little_wait=None,
    success_measured=None,
    success_printed=(0.5,),
    seconds=1.0,
)


def write_public(
    folder: Path, sent: list[dict[str, npt.NDArray[Any]]], rounds: list[int] | None = None
) -> Path:
    """A public folder as a client of any federation may record it."""
    (folder / "weights").mkdir(parents=True)
    lines = []
    for number, tensors in enumerate(sent):
        content = save(tensors)
        name = name_content(content)
        (folder / "weights" / f"{name}.safetensors").write_bytes(content)
        round_number = number + 1 if rounds is None else rounds[number]
        lines.append(json.dumps({"round": round_number, "client": 7, "weights": name}))
    (folder / "rounds.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def describe_findings(run: RunAudit) -> str:
    """What is public of the findings, as text; clients know besides when they were asked."""
    return json.dumps(
        {
            name: [finding.belief, finding.accuracy]
            for name, finding in run.findings.items()
            if EAVESDROPPERS[name].tier != "C"  # type: ignore[attr-defined]
        }
    )


def make_audit(
    named: float | None = 1.0,
    accuracy: Sequence[float] | None = (0.5, 0.9, 0.8),
    alone: Sequence[float] | None = (0.4, 0.5, 0.6),
    **changes: Any,
) -> RunAudit:
    """A run in which `majority` and `train-alone` found something."""
    both = (0.5, 0.5)
    findings = {
        "majority": Finding(named, None if accuracy is None else tuple(accuracy), both),
        "train-alone": Finding(0.5, None if alone is None else tuple(alone), both),
    }
    run = RunAudit(Path("run"), 3, 2, 0, findings, None, None, (), ())
    return dataclasses.replace(run, **changes)


def find_threat(report: AuditSummary, name: str) -> Threat:
    return next(threat for threat in report.threats if threat.name == name)
