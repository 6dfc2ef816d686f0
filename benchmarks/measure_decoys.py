"""Measure the decoys and write the tables of docs/decoys.md.

    python benchmarks/measure_decoys.py              print the tables
    python benchmarks/measure_decoys.py --write      write them into docs/decoys.md

The true trajectory is plain FedAvg over 20 clients.  Each client takes part in every round with a
random number of batches from none to all; replies are averaged, weighted by examples; 16 updates.
Each decoy moves 16 times.  Before its m-th move the learner has made m - 1 updates, except in the
last table, where it also makes none before the ninth move, or all 16 before the first.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from section import DOCUMENTS, describe_date, render_table, write_block
from sklearn.metrics import roc_auc_score

from covertfl import TrainingTask
from covertfl.kernels.choose import choose_kernel, draw_weights
from covertfl.kernels.job import Labels, LocalJob, LocalKernel, LocalOptimizer, Vector
from covertfl.schemes.decoys.decoy import Decoy, DecoyView, average_results
from covertfl.schemes.decoys.registry import DECOYS, make_decoy
from covertfl.tasks.registry import make_task
from covertfl.tasks.scores import compute_losses, score_accuracy
from covertfl.tasks.task import DataSettings

MOVES, BATCH_SIZE, CLIENTS = 16, 40, 20
SCENARIOS = {
    "toxicity, no positives (scenario 1)": {"task": "toxicity", "public_positive_share": 0.0},
    "toxicity, 10% positives (scenario 2)": {"task": "toxicity", "public_positive_share": 0.1},
    "toxicity, 30% positives": {"task": "toxicity", "public_positive_share": 0.3},
    "digits, two classes at 99%": {
        "task": "digits",
        "public_classes": 2,
        "public_class_share": 0.99,
    },
}
PACES: dict[str, Callable[[int], int]] = {
    "in step": lambda move: move,
    "eight moves late": lambda move: max(0, move - 8),
    "done before": lambda move: MOVES,
}


@dataclass(frozen=True, eq=False)
class Replies:
    """Replies of k clients: weights of shape (k, P) and numbers of examples of shape (k,)."""

    values: npt.NDArray[np.float32]
    examples: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Setting:
    """A task, its kernel, and the weights and the alignments of its true trajectory."""

    task: TrainingTask
    kernel: LocalKernel
    seed: int
    true: list[Vector]
    alignment: list[float]


@dataclass(frozen=True)
class Move:
    """Measurements of one move of a decoy, and of the true model after as many updates.

    Parameters
    ----------
    accuracy, ranking : on the validation set; ranking is the area under the ROC curve, NaN with
        more than two classes
    public_loss, true_public_loss : mean loss on the public set
    balanced_loss, true_balanced_loss : mean over the public classes of their mean losses
    length_ratio : length of the move divided by that of the true update
    alignment : mean cosine between the moves that clients' replies ask for and the decoy's move
    """

    accuracy: float
    ranking: float
    public_loss: float
    true_public_loss: float
    balanced_loss: float
    true_balanced_loss: float
    length_ratio: float
    alignment: float


def ask_clients(
    task: TrainingTask, kernel: LocalKernel, weights: Vector, *, generator: np.random.Generator
) -> Replies:
    """Return the replies of all clients that drew at least one batch."""
    jobs = []
    for rows in task.clients:
        batches = int(generator.integers(0, -(-len(rows) // BATCH_SIZE) + 1))
        order = generator.permutation(rows)[: batches * BATCH_SIZE]
        seed = int(generator.integers(2**62))
        if len(order):
            jobs.append(LocalJob(weights, task.train, order, BATCH_SIZE, seed))
    return Replies(np.stack(kernel.run(jobs)), np.array([len(job.rows) for job in jobs]))


def measure_alignment(replies: Replies, before: Vector, after: Vector) -> float:
    """Return the mean cosine between the moves that replies ask for and the move made."""
    asked, done = replies.values - before, after - before
    lengths = np.linalg.norm(asked, axis=1) * np.linalg.norm(done)
    return float(np.mean(asked @ done / np.maximum(lengths, 1e-30)))


def measure_ranking(outputs: npt.NDArray[np.float32], labels: Labels) -> float:
    """Return the area under the ROC curve of a binary task."""
    return float(roc_auc_score(labels == 1, outputs[:, 0]))


def measure_loss(task: TrainingTask, outputs: npt.NDArray[np.float32], labels: Labels) -> float:
    """Return the mean loss."""
    return float(compute_losses(outputs, labels, task.loss).mean())


def measure_balanced_loss(task: TrainingTask, outputs: npt.NDArray[np.float32]) -> float:
    """Return the mean over the public classes of their mean losses."""
    labels = task.public.labels
    classes = [labels == number for number in np.unique(labels)]
    losses = [measure_loss(task, outputs[rows], labels[rows]) for rows in classes]
    return float(np.mean(losses))


@cache
def prepare(scenario: str, seed: int) -> Setting:
    """Build a task and train its true trajectory."""
    settings = DataSettings(seed=seed, clients=CLIENTS, **SCENARIOS[scenario])  # type: ignore[arg-type]
    task = make_task(settings)
    kernel = choose_kernel(task.make_model, task.loss, LocalOptimizer())
    generator = np.random.default_rng([seed, 1])
    true, alignment = [draw_weights(task.make_model, seed=2 * seed)], []
    for _ in range(MOVES):
        replies = ask_clients(task, kernel, true[-1], generator=generator)
        true.append(average_results(replies.values, replies.examples).astype(np.float32))
        alignment.append(measure_alignment(replies, true[-2], true[-1]))
    return Setting(task, kernel, seed, true, alignment)


def follow_decoy(setting: Setting, kind: str, pace: str = "in step") -> list[Move]:
    """Measure all moves of a decoy."""
    decoy = make_decoy(kind, setting.task, batch_size=BATCH_SIZE)
    generator = np.random.default_rng([setting.seed, 2])
    weights = draw_weights(setting.task.make_model, seed=2 * setting.seed + 1)
    moves = []
    for number in range(MOVES):
        learner = setting.true[PACES[pace](number)]
        replies = ask_clients(setting.task, setting.kernel, weights, generator=generator)
        after = move_once(setting, decoy, weights, learner, replies, number, generator=generator)
        moves.append(describe_move(setting, replies, weights, after, number))
        weights = after
    return moves


def move_once(
    setting: Setting,
    decoy: Decoy,
    weights: Vector,
    learner: Vector,
    replies: Replies,
    number: int,
    *,
    generator: np.random.Generator,
) -> Vector:
    """Move a decoy once, as a run does."""
    used = slice(None) if decoy.needs_replies else slice(0)
    view = DecoyView(
        weights,
        learner,
        replies.values[used],
        replies.examples[used],
        number,
        setting.kernel.predict,
    )
    results = setting.kernel.run(decoy.plan(view, generator=generator))
    return decoy.move(view, results, generator=generator)


def describe_move(
    setting: Setting, replies: Replies, before: Vector, after: Vector, number: int
) -> Move:
    """Measure one move."""
    task, predict = setting.task, setting.kernel.predict
    outputs = predict(after, task.validation.features)
    own = predict(after, task.public.features)
    true = predict(setting.true[number + 1], task.public.features)
    true_length = np.linalg.norm(setting.true[number + 1] - setting.true[number])
    is_binary = task.loss == "binary"
    return Move(
        score_accuracy(outputs, task.validation.labels, task.loss),
        measure_ranking(outputs, task.validation.labels) if is_binary else float("nan"),
        measure_loss(task, own, task.public.labels),
        measure_loss(task, true, task.public.labels),
        measure_balanced_loss(task, own),
        measure_balanced_loss(task, true),
        float(np.linalg.norm(after - before) / true_length),
        measure_alignment(replies, before, after),
    )


def gather(runs: Sequence[Sequence[Move]], name: str) -> npt.NDArray[np.float64]:
    """Return one measurement of all moves, shape (seeds, moves)."""
    return np.array([[getattr(move, name) for move in moves] for moves in runs])


def show_range(values: npt.NDArray[np.float64]) -> str:
    """Format the median with the 5% and 95% quantiles in brackets."""
    low, middle, high = np.quantile(values, [0.05, 0.5, 0.95])
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def describe_decoy(kind: str, runs: Sequence[Sequence[Move]]) -> list[str]:
    """Format a decoy's row in the table of a scenario."""
    accuracy, ranking = gather(runs, "accuracy"), gather(runs, "ranking")[:, -1].mean()
    loss, true_loss = gather(runs, "public_loss"), gather(runs, "true_public_loss")
    return [
        kind,
        f"{accuracy[:, -1].mean():.3f}",
        f"{accuracy.max():.3f}",
        f"{accuracy[:, 1:].max():.3f}",
        "" if np.isnan(ranking) else f"{ranking:.2f}",
        f"{loss[:, -1].mean():.2f}",
        f"{gather(runs, 'balanced_loss')[:, -1].mean():.2f}",
        f"{np.mean(loss < true_loss):.0%}",
        show_range(gather(runs, "length_ratio")),
        show_range(gather(runs, "alignment")),
    ]


def describe_true(settings: Sequence[Setting], runs: Sequence[Sequence[Move]]) -> list[str]:
    """Format the true model's row."""
    accuracy, ranking = [], []
    for setting in settings:
        validation = setting.task.validation
        outputs = setting.kernel.predict(setting.true[-1], validation.features)
        accuracy.append(score_accuracy(outputs, validation.labels, setting.task.loss))
        if setting.task.loss == "binary":
            ranking.append(measure_ranking(outputs, validation.labels))
    return [
        "*true model*",
        f"{np.mean(accuracy):.3f}",
        "",
        "",
        f"{np.mean(ranking):.2f}" if ranking else "",
        f"{gather(runs, 'true_public_loss')[:, -1].mean():.2f}",
        f"{gather(runs, 'true_balanced_loss')[:, -1].mean():.2f}",
        "",
        "1",
        show_range(np.array([setting.alignment for setting in settings])),
    ]


COLUMNS = (
    "decoy",
    "accuracy, end",
    "peak",
    "peak after the first",
    "ranking, end",
    "public loss, end",
    "balanced",
    "loss below true",
    "length over true",
    "alignment",
)


def make_table(scenario: str, seeds: Sequence[int]) -> str:
    """Measure all decoys in one scenario and format the table."""
    settings = [prepare(scenario, seed) for seed in seeds]
    runs = {kind: [follow_decoy(setting, kind) for setting in settings] for kind in DECOYS}
    rows = [describe_true(settings, runs["public"])]
    rows += [describe_decoy(kind, runs[kind]) for kind in DECOYS]
    return f"### {scenario[0].upper()}{scenario[1:]}\n\n{render_table(COLUMNS, rows)}"


def make_pace_table(seeds: Sequence[int]) -> str:
    """Measure the decoy that uses the learner's weights while it learns at another pace."""
    columns = ("decoy", "scenario", "the learner is", "accuracy, end", "peak", "loss below true")
    rows = []
    for scenario in list(SCENARIOS)[:2]:
        for pace in PACES:
            runs = [follow_decoy(prepare(scenario, seed), "adversarial", pace) for seed in seeds]
            accuracy = gather(runs, "accuracy")
            below = gather(runs, "public_loss") < gather(runs, "true_public_loss")
            end, peak = f"{accuracy[:, -1].mean():.3f}", f"{accuracy.max():.3f}"
            rows.append(["adversarial", scenario, pace, end, peak, f"{below.mean():.0%}"])
    return f"### When the learner learns\n\n{render_table(columns, rows, left=len(columns))}"


def main() -> None:
    """Measure, and print or write the tables."""
    parser = argparse.ArgumentParser(description="Measure the decoys.")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, starting at 0")
    parser.add_argument("--write", action="store_true", help="write into docs/decoys.md")
    asked = parser.parse_args()
    seeds = range(asked.seeds)
    tables = [*(make_table(scenario, seeds) for scenario in SCENARIOS), make_pace_table(seeds)]
    text = "\n\n".join(tables)
    print(text)
    if asked.write:
        made = describe_date("python benchmarks/measure_decoys.py --write")
        text = f"{made}, seeds 0 to {seeds[-1]}.\n\n{text}\n"
        write_block(DOCUMENTS / "decoys.md", "measured", text)


if __name__ == "__main__":
    main()
