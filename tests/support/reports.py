"""Result files with invented numbers, and report pages taken apart."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from covertfl.report.write import write_report

COMMAND = "covertfl report 'a <folder>'"
NUM_ROUNDS = 12
FIGURES = {"chances", "accuracy", "actions", "exposure", "policy", "backlog", "waits"}
SETTINGS = """format = 3
task = "digits"
seed = {seed}

[policy]
kind = "optimal"

[decoy]
kind = "public"

[oracle]
transition = [[0.5, 0.5], [0.5, 0.5]]
success = [0.2, 0.9]

[cost]
learning = {{ shape = "linear", scale = 0.5, charged = "always" }}

[queue]
arrival_prob = 0.1
arrival_size = 4
learning_limit = 3.0

[versions]
covertfl = "0.1.0"
"""

SCORES = ("final_balanced_accuracy", "final_auc", "final_f1")


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def write_run(folder: Path, seed: int) -> None:
    """A run that owes four updates and learns in every third round, in vain the first time."""
    generator = np.random.default_rng(seed)
    backlog, learned = 4, 0
    public, metrics, private, updates = [], [], [], []
    for number in range(1, NUM_ROUNDS + 1):
        learns = number % 3 == 0
        updated = learns and number > 3
        before, backlog, learned = backlog, backlog - updated, learned + learns
        public.append({"round": number, "client": None, "weights": "0" * 64})
        metrics.append(
            {
                "round": number,
                "learner_score": float(generator.uniform(0.5, 0.9)),
                "decoy_scores": [0.5],
                "backlog": backlog,
                "exposure": learned / number,
            }
        )
        private.append(
            {
                "round": number,
                "oracle_state": number % 2,
                "backlog": before,
                "arrival": 0,
                "learn_prob": float(learns),
                "action": "learn" if learns else "obfuscate",
                "trajectory": 0 if learns else 1,
                "accepted": updated,
                "updated": updated,
                "rejected": [[1, "shape"]] if number == 1 else [],
                "backlog_after": backlog,
            }
        )
        if updated:
            updates.append({"task": 1, "came": 0, "done": number, "finished": False})
    write_lines(folder / "public" / "rounds.jsonl", public)
    write_lines(folder / "metrics.jsonl", metrics)
    write_lines(folder / "private" / "rounds.jsonl", private)
    write_lines(folder / "private" / "updates.jsonl", updates)
    (folder / "run.toml").write_text(SETTINGS.format(seed=seed))
    summary = {
        "learner_accuracy": metrics[-1]["learner_score"],
        "learner_auc": float(generator.uniform(0.5, 0.9)),
        "updates_done": len(updates),
        "rounds": NUM_ROUNDS,
        "learning_queries": learned,
        "exposure": learned / NUM_ROUNDS,
        "completed": backlog == 0,
        "updates_missing": backlog,
        "rejected_replies": 1,
        "rejected_by_reason": {"shape": 1},
        "average_privacy_cost": 0.25,
        "mean_wait": 9.0,
        "average_learning_cost": 1.5,
        "learning_limit": 3.0,
        "warnings": ["the learner answers class 1"] if seed == 1 else [],
    }
    (folder / "summary.json").write_text(json.dumps(summary))


def write_audit(folder: Path, num_runs: int) -> dict[str, Any]:
    """An audit with invented numbers; one eavesdropper has a name that HTML would trip over."""
    generator = np.random.default_rng(5)
    names = ("majority", "minority", "likelihood", "repeat", "<b>&odd", "train-alone")
    entries = {}
    for name in names:
        ends = np.sort(generator.uniform(size=(2, 2)), axis=1).tolist()
        curve = generator.uniform(0.4, 0.8, NUM_ROUNDS).tolist()
        entries[name] = {
            "threat": f"sees what {name} sees",
            "names_true": float(generator.uniform()),
            "interval": ends[0],
            "final_accuracy": curve[-1],
            "final_interval": ends[1],
            "worst_accuracy": max(curve),
            "advantage": float(generator.uniform(-0.2, 0.2)),
            "by_schedule": name in ("majority", "minority", "likelihood"),
            "verdict": f"cannot tell: {name} is at a loss",
            "accuracy_by_round": curve,
            "tier": "B" if name in ("<b>&odd", "train-alone") else "A",
            "gain": float(generator.uniform(-0.2, 0.2)),
            **dict(zip(SCORES, generator.uniform(size=3).tolist(), strict=True)),
        }
    unknown = ("names_true", "interval", "final_interval", "final_auc")
    entries["repeat"] |= dict.fromkeys(unknown)
    audit = {
        "runs": num_runs,
        "learner": {
            "accuracy": 0.7,
            "interval": [0.61, 0.79],
            "completion": 0.0,
            "exposure": 1 / 3,
            "exposure_by_round": [0.3] * NUM_ROUNDS,
            "accuracy_by_round": [0.7] * NUM_ROUNDS,
        },
        "eavesdroppers": entries,
        "tiers": {
            "A": {"title": "A listener", "verdict": "A listener: minority is the best."},
            "B": {"title": "B public set", "verdict": "B public set: <b>&odd is the best."},
        },
        "bound": {"value": 0.9244, "interval": [0.919, 0.93]},
        "separation": {"trajectories": [2] * num_runs, "right_share": 0.98},
        "mismatch": {"statistic": 7.22, "degrees": 7, "p_value": 0.41, "rounds": 24},
        "coalitions": {
            "1": {
                "rounds_seen": 0.51234,
                "eavesdroppers": {
                    "majority": {
                        "names_true": 0.25,
                        "interval": [0.11, 0.45],
                        "final_accuracy": 0.7126,
                    },
                    "repeat": {"names_true": 0.5, "interval": None, "final_accuracy": None},
                },
            }
        },
        "warnings": ["Trajectories were told apart for 98.0% of queries only."],
    }
    (folder / "audit.json").write_text(json.dumps(audit))
    return audit


def write_runs(folder: Path) -> Path:
    """Three audited runs."""
    for seed in range(3):
        write_run(folder / f"seed-{seed}", seed)
    write_audit(folder, 3)
    return folder


class Page(HTMLParser):
    """The cells of each table by its class, its words, and what it refers to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.references: list[str] = []
        self.identifiers: list[str] = []
        self.num_plots = 0
        self._rows: list[list[str]] | None = None
        self._in_cell = self._in_style = False
        self.words = ""
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        facts = dict(attrs)
        self.tags.append(tag)
        self.references += [
            value or "" for key, value in attrs if key in ("src", "href", "xlink:href")
        ]
        if "id" in facts:
            self.identifiers.append(facts["id"] or "")
        self.num_plots += tag == "svg"
        self._in_style = tag == "style"
        if tag == "table":
            self._rows = self.tables[facts["class"] or ""] = []
        elif tag == "tr" and self._rows is not None:
            self._rows.append([])
        elif tag in ("td", "th") and self._rows is not None:
            self._rows[-1].append("")
            self._in_cell = True
        elif tag in ("small", "br") and self._in_cell and self._rows is not None:
            self._rows[-1][-1] += "\n"

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._in_cell = False
        elif tag == "table":
            self._rows = None

    def handle_data(self, data: str) -> None:
        if not self._in_style:
            self.words += data
        if self._in_cell and self._rows is not None:
            self._rows[-1][-1] += data


def read_page(folder: Path) -> Page:
    return Page(write_report(folder, command=COMMAND).read_text("utf-8"))


def check_audit_table(rows: list[list[str]], audit: dict[str, Any]) -> None:
    """Every cell of the table says what the audit says, to the places it shows."""
    titles = [tier["title"] for tier in audit.get("tiers", {}).values()]
    assert [row[0] for row in rows if len(row) == 1] == titles
    shown = [row for row in rows[1:] if len(row) > 1]
    for row, (name, entry) in zip(shown, audit["eavesdroppers"].items(), strict=True):
        assert row[0].split("\n") == [name, entry["threat"]]
        check_number(row[1], entry["names_true"], 100.0)
        check_interval(row[2], entry["interval"], 100.0)
        check_number(row[3], entry["final_accuracy"], 1.0)
        check_interval(row[4], entry["final_interval"], 1.0)
        for place, score in enumerate(SCORES, start=5):
            check_number(row[place], entry[score], 1.0)
        check_number(row[8], entry["worst_accuracy"], 1.0)
        check_number(row[9], entry["advantage"], 1.0)
        check_number(row[10], entry.get("gain"), 1.0)
        assert row[11].replace("\n", "") == entry["verdict"]


def check_number(text: str, value: float | None, scale: float) -> None:
    if value is None:
        assert text == "unknown"
        return
    assert text.endswith("%") == (scale == 100.0)
    number = text.rstrip("%")
    places = len(number.partition(".")[2])
    assert places == (1 if scale == 100.0 else 3)
    assert abs(float(number) - scale * value) <= 0.5 * 10.0**-places + 1e-9


def check_interval(text: str, ends: list[float] | None, scale: float) -> None:
    if ends is None:
        assert text == ""
        return
    low, high = text.split(" to ")
    check_number(low, ends[0], scale)
    check_number(high, ends[1], scale)
