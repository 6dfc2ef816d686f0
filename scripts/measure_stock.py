"""Compare what a stock Flower strategy and a covert one reveal, for docs/threat_model.md.

    python scripts/measure_stock.py [--seeds 5] [--out out/stock] [--write]

trains the toxicity task over Flower's messages in this process, once with FedAvg as Flower has it
and once with the same strategy inside CovertStrategy.  One client in each federation eavesdrops: it
takes part in every round and records what it is sent.  Both recordings are audited.
"""

from __future__ import annotations

import argparse
import datetime
import json
import logging
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from covertfl.auditing.folders import audit_folders
from covertfl.engines.flower.array_form import make_float_form
from covertfl.engines.flower.node_numbers import KnownNodeNumbers
from covertfl.files.atomic import write_atomically
from covertfl.flower import (
    CovertStrategy,
    InProcessGrid,
    RoundSettings,
    make_client_app,
    make_eavesdropper_app,
)
from covertfl.runs.build import KernelCache, build_federation, simulate_participation
from covertfl.runs.clients import ClientResponder
from covertfl.runs.files import read_lines
from covertfl.runs.run_file import build_run, format_run, list_versions
from covertfl.runs.settings import RunSettings
from covertfl.runs.summary import RunSummary
from covertfl.runs.task import find_task
from covertfl.seeding import Stream, draw_seed

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "threat_model.md"
BEGIN, END = "<!-- stock: begin -->", "<!-- stock: end -->"
SPY = 0
# Names in the table, and what the audit makes of them.
ROWS = {"FedAvg, stock": "always-learn", "FedAvg in CovertStrategy": "optimal"}


def make_settings(seed: int, policy: str) -> RunSettings:
    """Return the default settings, over Flower's messages."""
    content = {
        "task": "toxicity",
        "seed": seed,
        "policy": {"kind": policy},
        "decoy": {"kind": "public"},
        "engine": {"kind": "flower", "mode": "in-process"},
    }
    return build_run(content, "measure_stock.py", folder=Path())


def make_grid(settings: RunSettings, records: Path) -> InProcessGrid:
    """Return a grid of clients as in the simulator, except for one that is always connected."""
    participation = simulate_participation(settings, find_task(settings))
    app = add_evaluation(make_client_app(settings))
    clients = settings.sections.federation.clients
    apps = dict.fromkeys(range(clients), app) | {SPY: make_eavesdropper_app(app, records)}
    return InProcessGrid(
        apps,
        clients,
        connected=lambda number: sorted({SPY, *participation.attend(number).clients.tolist()}),
    )


def add_evaluation(app: ClientApp) -> ClientApp:
    """Return the same app with a reply to evaluations, which stock strategies ask for."""
    both = ClientApp()

    @both.train()
    def train(message: Message, context: Context) -> Message:
        return app(message, context)

    @both.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 1, "accuracy": 0.0})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return both


def make_strategy() -> FedAvg:
    """Return FedAvg with its defaults, on any number of nodes."""
    return FedAvg(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)


def find_clients(settings: RunSettings) -> ClientResponder:
    """Return the clients of a run, with model and data."""
    answers = build_federation(settings, KernelCache()).responder
    assert isinstance(answers, ClientResponder)
    return answers


def run_stock(out: Path, seed: int) -> None:
    """Run FedAvg as Flower has it; write its folder like that of a run, for the audit."""
    settings = make_settings(seed, ROWS["FedAvg, stock"])
    answers = find_clients(settings)
    form = make_float_form(answers.layout)
    first = form.write(answers.first_weights(draw_seed(settings.seed, Stream.INITIAL, 0)))
    scores: list[float] = []

    def score(number: int, arrays: ArrayRecord) -> MetricRecord:
        parts = {name: array.numpy() for name, array in arrays.items()}
        scores.append(answers.score(form.layout.join(parts)))
        return MetricRecord({"accuracy": scores[-1]})

    make_strategy().start(
        grid=make_grid(settings, out / "public"),
        initial_arrays=ArrayRecord({name: Array(array.numpy()) for name, array in first.items()}),
        num_rounds=settings.rounds,
        evaluate_fn=score,
    )
    write_records(out, settings, scores[1:])


def write_records(out: Path, settings: RunSettings, scores: Sequence[float]) -> None:
    """Write the private records: every query was true."""
    (out / "private").mkdir(mode=0o700, exist_ok=True)
    write_atomically(out / "run.toml", format_run(settings, list_versions()))
    rounds = range(1, 1 + len(scores))
    private = [
        {"round": number, "action": "learn", "trajectory": 0, "clients": [SPY], "batches": [1]}
        | {"oracle_state": 0, "arrival": 0, "accepted": True}
        for number in rounds
    ]
    metrics = [
        {"round": number, "learner_score": score}
        for number, score in zip(rounds, scores, strict=True)
    ]
    for name, lines in (("private/rounds.jsonl", private), ("metrics.jsonl", metrics)):
        write_atomically(out / name, "".join(json.dumps(line) + "\n" for line in lines))
    summary = RunSummary(
        learner_accuracy=scores[-1],
        updates_done=len(scores),
        rounds=len(scores),
        learning_queries=len(scores),
        exposure=1.0,
        completed=True,
        updates_missing=0,
        rejected_replies=0,
        rejected_by_reason={},
        average_privacy_cost=0.0,
        mean_wait=None,
        little_wait=None,
        success_measured=None,
        success_printed=tuple(settings.problem.oracle.success.tolist()),
        seconds=0.0,
    )
    write_atomically(out / "summary.json", json.dumps(summary.to_dict()) + "\n")


def run_covert(out: Path, seed: int) -> None:
    """Run the same strategy, wrapped; the client's records are what is audited."""
    settings = make_settings(seed, ROWS["FedAvg in CovertStrategy"])
    records = out.with_name(f"{out.name}-heard")
    grid = make_grid(settings, records)
    numbers = KnownNodeNumbers(grid.clients)
    CovertStrategy(
        make_strategy,
        run=settings,
        out=out,
        seed=seed,
        round_settings=RoundSettings(numbers=numbers),
    ).start(grid)
    sent = (out / "public" / "rounds.jsonl").read_bytes()
    assert sent == (records / "rounds.jsonl").read_bytes(), "the client was sent something else"
    shutil.rmtree(out / "public")
    records.rename(out / "public")


def count_ahead(folder: Path) -> tuple[int, int]:
    """Return the number of evaluations, and of those with other weights than the query's."""
    evaluated, queries = (
        list(read_lines(path)) if path.exists() else []
        for path in (folder / "public" / name for name in ("evaluations.jsonl", "rounds.jsonl"))
    )
    sent = {line["round"]: line["weights"] for line in queries}
    return len(evaluated), sum(line["weights"] != sent[line["round"]] for line in evaluated)


def measure(out: Path, seeds: int) -> dict[str, Any]:
    """Train and audit both; runs that exist are kept."""
    found = {}
    for name, run in (("FedAvg, stock", run_stock), ("FedAvg in CovertStrategy", run_covert)):
        place = out / ROWS[name]
        folders = [place / f"seed-{seed}" for seed in range(seeds)]
        for seed, folder in enumerate(folders):
            if not (folder / "summary.json").exists():
                for left in (folder, folder.with_name(f"{folder.name}-heard")):
                    shutil.rmtree(left, ignore_errors=True)
                run(folder, seed)
        audit = audit_folders(folders).to_dict()
        ahead = [count_ahead(folder) for folder in folders]
        found[name] = {
            **audit,
            "evaluations": tuple(sum(part) for part in zip(*ahead, strict=True)),
        }
    return found


def format_table(found: Mapping[str, Any]) -> str:
    """Return what each eavesdropper gets from either, as a Markdown table."""
    stock, covert = (found[name] for name in ROWS)
    lines = [f"| | {' | '.join(ROWS)} |", "| --- | ---: | ---: |"]

    def add(title: str, *cells: str) -> None:
        lines.append(f"| {title} | {' | '.join(cells)} |")

    both = (stock, covert)
    add("accuracy of the learner", *(f"{one['learner']['accuracy']:.3f}" for one in both))
    add("true queries", *(f"{one['learner']['exposure']:.0%}" for one in both))
    for name in stock["eavesdroppers"]:
        cells = [one["eavesdroppers"].get(name) for one in both]
        add(
            f"`{name}`: names the true model, accuracy of its own",
            *(
                "" if cell is None
                else f"{_share(cell['names_true'])}, {cell['final_accuracy']:.3f}"
                for cell in cells
            ),
        )  # fmt: skip
    add(
        "evaluations sent to the client, with weights of the next query",
        *(f"{one['evaluations'][0]}, {one['evaluations'][1]}" for one in both),
    )
    return "\n".join(lines)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def write_page(found: Mapping[str, Any], seeds: int, seconds: float) -> None:
    """Write the table to docs/threat_model.md, between its markers."""
    made = (
        f"Made on {datetime.date.today().isoformat()} by `python scripts/measure_stock.py --seeds "
        f"{seeds} --write`: toxicity, {seeds} seeds, 45 rounds, policy "
        f"`{ROWS['FedAvg in CovertStrategy']}`, decoy `public`, recorded by a client that takes "
        "part in every round."
    )
    before, rest = PAGE.read_text("utf-8").split(BEGIN)
    after = rest.split(END)[1]
    write_atomically(PAGE, f"{before}{BEGIN}\n{made}\n\n{format_table(found)}\n{END}{after}")


def main() -> int:
    """Measure and print; write if asked to."""
    parser = argparse.ArgumentParser(description="audit a stock and a covert strategy side by side")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "stock")
    parser.add_argument("--write", action="store_true", help="write docs/threat_model.md")
    asked = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    started = time.perf_counter()
    found = measure(asked.out, asked.seeds)
    print(format_table(found))
    if asked.write:
        write_page(found, asked.seeds, time.perf_counter() - started)
    return 0


if __name__ == "__main__":
    sys.exit(main())
