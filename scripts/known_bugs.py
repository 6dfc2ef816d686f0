"""Bugs that the tests must notice; `scripts/mutants.py` injects them one at a time."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Mutant(NamedTuple):
    """A bug: in `file`, `original` becomes `mutated`; `tests` should then fail.

    The file is one of paper/ if its name starts so, else one of the package.
    """

    name: str
    file: str
    original: str
    mutated: str
    tests: str

    def find(self, root: Path) -> Path:
        """Return where the file is in a working tree."""
        return (root if self.file.startswith("paper/") else root / "src" / "covertfl") / self.file

    def inject(self, root: Path) -> str:
        """Return the file's text with the bug; raise ValueError unless the original is there."""
        text = self.find(root).read_text()
        if text.count(self.original) != 1:
            raise ValueError(
                f"{self.name}: the original must occur once in {self.file}, "
                f"got {text.count(self.original)} times: {self.original!r}"
            )
        return text.replace(self.original, self.mutated)


MUTANTS = (
    # --- runs ---
    Mutant(
        "fedsgd-without-acceptance",
        "schemes/scheduled.py",
        "is_used = outcome.accepted or (",
        "is_used = outcome.accepted or state.memory is not None or (",
        "tests/schemes/test_scheduled.py",
    ),
    Mutant(
        "refresh-with-one-iteration",
        "schemes/policies.py",
        "generator=generator), LIVE_ITERATIONS)",
        "generator=generator), 1)",
        "tests/schemes/test_live.py",
    ),
    Mutant(
        "decoy-moves-without-acceptance",
        "schemes/scheduled.py",
        "return outcome.accepted or not gated",
        "return True",
        "tests/schemes/test_scheduled.py",
    ),
    Mutant(
        "matched-decoy-from-the-public-seed",
        "schemes/scheduled.py",
        "draw = make_generator(self.setup.hidden_seed, Stream.MOVE",
        "draw = make_generator(0, Stream.MOVE",
        "tests/schemes/test_scheduled.py",
    ),
    Mutant(
        "unweighted-average",
        "schemes/replies.py",
        "total.add(values, count)",
        "total.add(values, 1)",
        "tests/schemes/test_replies.py",
    ),
    Mutant(
        "full-cost-also-when-learning",
        "runs/records.py",
        "if backlog == problem.capacity and not query.learns:",
        "if backlog == problem.capacity:",
        "tests/runs/test_records.py",
    ),
    Mutant(
        "oracle-state-one-round-late",
        "runs/participation.py",
        "return int(recorded.states[round_number - 1])",
        "return int(recorded.states[max(round_number - 2, 0)])",
        "tests/runs/test_participation.py tests/training/test_inputs.py",
    ),
    Mutant(
        "action-from-the-public-seed",
        "schemes/scheduled.py",
        "generator = make_generator(self.setup.hidden_seed, Stream.ACTION, round_number)",
        "generator = make_generator(0, Stream.ACTION, round_number)",
        "tests/schemes/test_scheduled.py",
    ),
    Mutant(
        "acceptance-from-the-public-seed",
        "runs/participation.py",
        "seed = self.settings.hidden_seed\n        draw = ",
        "seed = self.settings.seed\n        draw = ",
        "tests/runs/test_clients.py",
    ),
    Mutant(
        "decoy-from-the-public-seed",
        "schemes/scheduled.py",
        "moving = make_generator(seed, Stream.DECOY",
        "moving = make_generator(0, Stream.DECOY",
        "tests/runs/test_clients.py",
    ),
    Mutant(
        "one-seed-for-all-clients",
        "runs/simulated.py",
        "seed=own,",
        "seed=0,",
        "tests/engines/test_simulated.py",
    ),
    # --- tasks and theory ---
    Mutant(
        "norms-at-the-next-point",
        "paper/theory_updates.py",
        "        point = task.step(point, response, step)\n",
        "        point = task.step(point, response, step)\n"
        "        norms[m] = np.sum(task.gradient(point) ** 2)\n",
        "tests/paper/test_theory.py",
    ),
    Mutant(
        "half-of-the-noise",
        "paper/theory_updates.py",
        "noise * np.sum(steps**2) / 2.0) / np.sum(steps)",
        "noise * np.sum(steps**2) / 4.0) / np.sum(steps)",
        "tests/paper/test_theory.py",
    ),
    Mutant(
        "random-minus-optimal",
        "paper/random_policy.py",
        "best.learner[-1] - other.learner[-1]",
        "other.learner[-1] - best.learner[-1]",
        "tests/paper/test_tables.py",
    ),
    Mutant(
        "misprinted-table-1",
        "demo/run.py",
        '"eavesdropper_accuracy": 0.52',
        '"eavesdropper_accuracy": 0.57',
        "tests/paper/test_tables.py",
    ),
    Mutant(
        "one-validation-set-for-all-seeds",
        "runs/simulated.py",
        "return (kernel, id(examples.features), id(examples.labels), run.task.loss)",
        "return (kernel, run.task.loss)",
        "tests/engines/test_simulated.py",
    ),
    Mutant(
        "gap-at-the-limit",
        "paper/figure_spga.py",
        "gap = measure_gap(problem, policy)",
        "gap = evaluation.privacy_cost / optimum.evaluation.privacy_cost - 1.0",
        "tests/paper/test_figures.py",
    ),
    Mutant(
        "expected-accuracy-without-correction",
        "paper/averages.py",
        "mean = float(x.mean() - slope * luck.mean())",
        "mean = float(x.mean())",
        "tests/paper/test_averages.py",
    ),
    Mutant(
        "tracking-without-a-change",
        "paper/figure_tracking.py",
        "for problem, generator in ((before, first), (after, second)):",
        "for problem, generator in ((before, first), (before, second)):",
        "tests/paper/test_figures.py",
    ),
    # --- solvers ---
    Mutant(
        "multiplier-as-misprinted",
        "solvers/spga/kernel.py",
        "max((1.0 - step / schedule.penalty) * multiplier, multiplier + step * excess)",
        "max(1.0 - step / schedule.penalty * multiplier, multiplier + step * excess)",
        "tests/solvers/spga/test_kernel.py",
    ),
    Mutant(
        "multiplier-without-its-floor",
        "solvers/spga/kernel.py",
        "max((1.0 - step / schedule.penalty) * multiplier, multiplier + step * excess)",
        "multiplier + step * excess",
        "tests/solvers/spga/test_kernel.py",
    ),
    Mutant(
        "mixture-as-printed",
        "solvers/multiplier.py",
        "weight = (1.0 - alpha) * m_within / (alpha * m_over + (1.0 - alpha) * m_within)\n"
        "    for _ in range(3):",
        "weight = 1.0 - alpha\n    for _ in range(1):",
        "tests/solvers/test_multiplier.py tests/solvers/test_constrained.py",
    ),
    Mutant(
        "ties-go-to-learning",
        "solvers/average_cost.py",
        "learn = solution.learn & ~solution.gap.is_tie",
        "learn = solution.learn | solution.gap.is_tie",
        "tests/solvers/test_average_cost.py tests/solvers/test_constrained.py",
    ),
    Mutant(
        "minority-of-a-tie",
        "solvers/minority.py",
        'return (read_count(rounds, "rounds") - 1) // 2',
        'return read_count(rounds, "rounds") // 2',
        "tests/solvers/test_minority.py",
    ),
    # --- evaluation and planning ---
    Mutant(
        "greedy-service-order",
        "evaluation/bounds.py",
        "np.argsort(price[useful] / yield_[useful], kind",
        "np.argsort(price[useful], kind",
        "tests/evaluation/test_bounds.py",
    ),
    Mutant(
        "forgone-in-bad-states",
        "evaluation/bounds.py",
        "for state in np.argsort(-worth, kind",
        "for state in np.argsort(worth, kind",
        "tests/evaluation/test_bounds.py",
    ),
    Mutant(
        "updates-at-backlog-0",
        "evaluation/horizon.py",
        "    updated[:, 0] = 0.0\n",
        "",
        "tests/evaluation/test_horizon.py",
    ),
    Mutant(
        "lost-work-not-counted-when-learning",
        "evaluation/queue.py",
        "lost = learn * expected_lost(problem, Action.LEARN)",
        "lost = learn * expected_lost(problem, Action.OBFUSCATE)",
        "tests/evaluation/test_queue.py",
    ),
    Mutant(
        "steps-1-over-m-without-pi",
        "planning/updates.py",
        "(gap + math.pi**2 * smoothness_noise / 12.0) / epsilon",
        "(gap + math.pi**2 * smoothness_noise / 6.0) / epsilon",
        "tests/planning/test_updates.py",
    ),
    # --- fitting ---
    Mutant(
        "cut-belongs-to-the-state-below",
        "decision/states.py",
        'np.searchsorted(self.cuts, np.asarray(values), side="right")',
        'np.searchsorted(self.cuts, np.asarray(values), side="left")',
        "tests/fitting/test_oracle.py tests/decision/test_states.py",
    ),
    Mutant(
        "moves-backwards",
        "fitting/oracle.py",
        "np.add.at(moves, (states[:-1][follows], states[1:][follows]), 1)",
        "np.add.at(moves, (states[1:][follows], states[:-1][follows]), 1)",
        "tests/fitting/test_oracle.py",
    ),
    Mutant(
        "posterior-of-failures",
        "fitting/oracle.py",
        "successes + JEFFREYS, trials - successes + JEFFREYS",
        "trials - successes + JEFFREYS, successes + JEFFREYS",
        "tests/fitting/test_oracle.py",
    ),
    # --- decoys and eavesdroppers ---
    Mutant(
        "mirrored-towards-the-replies",
        "schemes/decoys/mirrored.py",
        "return move_by(view.weights, -displacement)",
        "return move_by(view.weights, displacement)",
        "tests/schemes/decoys/test_decoys.py",
    ),
    Mutant(
        "contradict-the-frequent-class",
        "schemes/decoys/adversarial.py",
        "np.where(self._share_of(kinds) < self._share_of(predicted), kinds, predicted)",
        "np.where(self._share_of(kinds) > self._share_of(predicted), kinds, predicted)",
        "tests/schemes/decoys/test_adversarial.py",
    ),
    Mutant(
        "gradient-as-weights",
        "eavesdroppers/clients.py",
        '-replied if job.work == "gradient" else replied - query.weights',
        "replied - query.weights",
        "tests/eavesdroppers/test_clients.py",
    ),
    Mutant(
        "query-with-nothing-owed-is-forgotten",
        "eavesdroppers/likelihood.py",
        "        after[:, 0] += served[:, 0]\n",
        "",
        "tests/eavesdroppers/test_likelihood.py",
    ),
    Mutant(
        "likelihood-of-one-decoy",
        "eavesdroppers/likelihood.py",
        "choice = np.log(max(len(known) - 1, 1))",
        "choice = 0.0",
        "tests/eavesdroppers/test_likelihood.py",
    ),
    Mutant(
        "validation-by-mean-loss",
        "eavesdroppers/owners.py",
        'softmax(-len(self._own.data) * self._tally.last("loss", len(self._seen)))',
        'softmax(-self._tally.last("loss", len(self._seen)))',
        "tests/eavesdroppers/test_owners.py",
    ),
    # --- exchangeable replicas ---
    Mutant(
        "flipped-zeros-keep-their-sign",
        "schemes/replies.py",
        "columns += np.float32(0.0)",
        "columns += np.float32(-0.0)",
        "tests/schemes/test_exchangeable.py",
    ),
    Mutant(
        "first-weights-are-not-in-the-slot",
        "schemes/exchangeable.py",
        "return self.reflect(drawn, self.choice)",
        "return self.reflect(drawn, 0)",
        "tests/schemes/test_exchangeable.py",
    ),
    Mutant(
        "final-model-is-sent",
        "schemes/exchangeable.py",
        "sent = state.sent if is_last else weights",
        "sent = weights",
        "tests/schemes/test_exchangeable.py",
    ),
    Mutant(
        "order-of-slots-never-changes",
        "schemes/exchangeable.py",
        "make_generator(seed, Stream.ORDER, self.number)",
        "make_generator(seed, Stream.ORDER, 0)",
        "tests/schemes/test_exchangeable.py",
    ),
    Mutant(
        "known-axes-are-flipped",
        "schemes/flips.py",
        "    free = find_free_axes(task.public)\n",
        "    free = np.ones_like(find_free_axes(task.public))\n",
        "tests/schemes/test_flips.py",
    ),
    Mutant(
        "anyone-may-read-the-secret",
        "schemes/flips.py",
        '"\\n", mode=0o600)',
        '"\\n", mode=0o644)',
        "tests/schemes/test_flips.py",
    ),
)
