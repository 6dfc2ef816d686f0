"""A client that listens: rounding, restarts and the server's work do not name the true model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch")

import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    FedYogi,
    Krum,
    MultiKrum,
    Strategy,
)
from hypothesis import given, strategies as st

from covertfl import RunProgress
from covertfl.arrays import BoolArray, FloatArray
from covertfl.engines.flower.array_form import make_float_form
from covertfl.engines.flower.client_app import make_client_app
from covertfl.flower import CovertStrategy, Examples, InProcessGrid, make_server_task
from covertfl.kernels.job import Layout, LocalJob
from covertfl.kernels.mlp import MlpKernel
from covertfl.runs import checkpoint as checkpoint_file, folder as run_folder
from covertfl.runs.checkpoint import Checkpoint
from covertfl.runs.public import PublicTranscript
from covertfl.runs.settings import RunSettings
from covertfl.runs.train import find_task
from covertfl.schemes.decoys.decoy import average_results
from covertfl.schemes.decoys.registry import DECOYS
from covertfl.schemes.replies import Reply, average_replies, find_fault, sift_replies
from covertfl.training import train
from tests.support.attacks import attack_seeds, require_guess
from tests.support.flower_runs import (
    NODES,
    ROUNDS,
    RUN,
    Scheduled,
    Train,
    Witness,
    make_app,
    make_first,
    make_model,
    make_task,
    nudge,
    run_covert,
)
from tests.support.seen_queries import SeenQuery, listen
from tests.support.slow_cases import mark_slow
from tests.support.small_runs import HORIZON, make_run, merge, read_column, read_rounds

# --- rounding of coordinates that nobody trains ---------------------------------------------------
#
# An average of 32-bit replies differs from equal replies in the last bits, so that pixels which are
# dark in all images drift on a trajectory that is averaged, and stay on one that is not.


CLIENTS, CLASSES = 6, 10
# Moves of a run of at most so many units in the last place are a drift.
MOST_DRIFT = 64.0
KINDS = ("public", "mirrored", "random", "adversarial")


@pytest.fixture(autouse=True)
def collects_no_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower asks for it with every conversion."""
    monkeypatch.setattr("gc.collect", lambda *_: 0)


class Own(FedAvg):
    """A user's own strategy, of which nothing is known."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        return super().aggregate_train(server_round, list(replies))


def clip(inner: Strategy) -> Strategy:
    return DifferentialPrivacyServerSideFixedClipping(inner, 0.0, 1e6, CLIENTS)


STRATEGIES: dict[str, Callable[[], Strategy] | None] = {
    "built-in": None,
    "FedAvg": FedAvg,
    "FedProx": lambda: FedProx(proximal_mu=0.1),
    "FedAvgM": lambda: FedAvgM(server_momentum=0.9, server_learning_rate=0.5),
    "FedAdam": lambda: FedAdam(eta=0.01),
    "FedYogi": lambda: FedYogi(eta=0.01),
    "FedAdagrad": lambda: FedAdagrad(eta=0.01),
    "Krum": lambda: Krum(num_malicious_nodes=1),
    "MultiKrum": lambda: MultiKrum(num_malicious_nodes=1, num_nodes_to_select=3),
    "Bulyan": Bulyan,
    "FedMedian": FedMedian,
    "FedTrimmedAvg": FedTrimmedAvg,
    "own": Own,
    "own metrics": lambda: FedAvg(train_metrics_aggr_fn=lambda *_: MetricRecord()),
    "clipped": lambda: clip(FedAvg()),
}


def make_digits(kind: str, seed: int, **changes: Any) -> RunSettings:
    """A run on the digits in which every round with replies is accepted."""
    settings: dict[str, Any] = {
        "seed": seed,
        "rounds": 10,
        "updates": 5,
        "policy": {"kind": "random"},
        "decoy": {"kind": kind},
        "federation": {"acceptance": "model", "participation": [2, 4, CLIENTS]},
        "oracle": {"success": [1.0, 1.0, 1.0]},
    }
    return make_run(**merge(settings, changes))


def run_digits(settings: RunSettings, name: str, out: Path) -> list[SeenQuery]:
    """Run the digits over Flower and return the queries; trajectory 0 is the true one."""
    grid = InProcessGrid(make_client_app(settings), CLIENTS)
    CovertStrategy(STRATEGIES[name], run=settings, out=out, seed=settings.seed + 1).start(grid=grid)
    return read_queries(out)


def read_queries(out: Path) -> list[SeenQuery]:
    """All queries of a run with the trajectories that its owner knows: a strong attacker's view."""
    transcript = PublicTranscript(out / "public")
    queries = []
    for record in read_rounds(out):
        parts = sorted(transcript.read_weights(record["weights"]).items())
        weights = np.concatenate([values.ravel() for _, values in parts])
        queries.append(SeenQuery(record["round"], record["trajectory"], weights, None))
    return queries


def find_dead() -> BoolArray:
    """Coordinates of a logistic model whose pixel is dark in all images of clients and server."""
    data = find_task(make_digits("public", 0))
    is_dark = ~np.concatenate([data.train.features, data.public.features]).any(axis=0)
    return np.concatenate([np.zeros(CLASSES, dtype=bool), np.tile(is_dark, CLASSES)])


def require_still(queries: Sequence[SeenQuery]) -> None:
    """All trajectories have moved, and on dead coordinates none of them ever did."""
    is_dead = find_dead()
    assert is_dead.sum() == 3 * CLASSES
    for trajectory in (0, 1):
        own = [query.weights for query in queries if query.trajectory == trajectory]
        assert len({weights.tobytes() for weights in own}) > 2
        for weights in own:
            assert weights[is_dead].tobytes() == own[0][is_dead].tobytes()


CASES = [("FedAvg", kind) for kind in KINDS]
CASES += [(name, kind) for name, kind in zip(STRATEGIES, itertools.cycle(KINDS), strict=False)]


@pytest.mark.parametrize(
    ("name", "kind"),
    mark_slow(dict.fromkeys(CASES), [("FedAvg", "public"), ("FedYogi", "mirrored")]),
)
def test_coordinates_that_nobody_trains_stay_on_all_trajectories(
    name: str, kind: str, tmp_path: Path
) -> None:
    require_still(run_digits(make_digits(kind, 3), name, tmp_path))


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd"])
@pytest.mark.parametrize("kind", mark_slow(KINDS, ["public", "mirrored"]))
def test_they_stay_in_the_simulator(kind: str, algorithm: str, tmp_path: Path) -> None:
    train(make_digits(kind, 3, federation={"algorithm": algorithm}), tmp_path)
    require_still(read_queries(tmp_path))


def count_drifts(queries: Sequence[SeenQuery]) -> FloatArray:
    """Coordinates of each trajectory that are a few last bits away from where they started."""
    drifts = np.zeros(2)
    for trajectory in (0, 1):
        own = np.stack([query.weights for query in queries if query.trajectory == trajectory])
        first = own[0].astype(np.float64)
        units = np.abs(own - first).max(axis=0) / np.spacing(np.abs(own[0]))
        drifts[trajectory] = np.sum((units > 0.0) & (units <= MOST_DRIFT))
    return drifts


def measure_rounding(queries: Sequence[SeenQuery]) -> FloatArray:
    """Mean shares of coordinates that moved by rounding: figures of the eavesdropper."""
    order = list(dict.fromkeys(query.trajectory for query in queries))
    seen = [replace(query, trajectory=order.index(query.trajectory)) for query in queries]
    return listen("rounding", seen).figures()["rounding"][np.argsort(order)]


def share_guess(figures: FloatArray) -> float:
    """1 if the largest figure is that of the true trajectory, 1/2 if both are equal."""
    return 0.5 * (1.0 + float(np.sign(figures[0] - figures[1])))


@pytest.mark.slow
def test_rounding_does_not_name_the_true_trajectory(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    runs, right = attack_seeds(), np.zeros(2)
    names = list(STRATEGIES)
    for seed in range(runs):
        name, kind = names[seed % len(names)], KINDS[seed % len(KINDS)]
        queries = run_digits(make_digits(kind, 100 + seed), name, tmp_path / str(seed))
        right += [share_guess(measure_rounding(queries)), share_guess(count_drifts(queries))]
    require_guess(record_property, "rounding of moves", right[0], runs)
    require_guess(record_property, "drift of coordinates", right[1], runs)


counts = st.lists(st.integers(1, 2**20), min_size=1, max_size=12)


@given(st.floats(-(2.0**60), 2.0**60, width=32), counts)
def test_the_average_of_equal_replies_is_their_value(value: float, examples: list[int]) -> None:
    values = np.full(3, value, dtype=np.float32)
    replies = [Reply(client, values, count) for client, count in enumerate(examples)]
    form = make_float_form(Layout(("weight",), ((3,),)))
    record = ArrayRecord(form.write(values))
    for average in (
        average_replies(sift_replies(replies, partial(find_fault, size=3), 2**20)),
        average_results([values] * len(examples), examples).astype(np.float32),
        form.average([record] * len(examples), examples),
    ):
        assert average.tolist() == values.tolist()


def test_averages_are_the_simulators() -> None:
    """In any order of arrival, and whatever strategy of Flower's averages."""
    generator = np.random.default_rng(5)
    values = generator.normal(size=(7, 40)).astype(np.float32)
    examples = generator.integers(1, 1000, size=7).tolist()
    form = make_float_form(Layout(("weight", "bias"), ((4, 9), (4,))))
    records = [ArrayRecord(form.write(vector)) for vector in values]
    replies = [Reply(*given) for given in zip(range(7), values, examples, strict=True)]
    expected = average_replies(sift_replies(replies[::-1], partial(find_fault, size=40), 1000))
    assert form.average(records, examples).tobytes() == expected.tobytes()


def test_zeros_have_no_sign(tmp_path: Path) -> None:
    """Pruned weights are often -0.0, and a mean of them is 0.0."""
    first = {name: array.numpy() for name, array in make_first().items()}
    first["0.weight"] = -0.0 * np.abs(first["0.weight"])
    arrays = ArrayRecord({name: Array(values) for name, values in first.items()})

    def prune(message: Message, context: Context) -> dict[str, Any]:
        return {**nudge(message, context), "0.weight": first["0.weight"]}

    for name in ("built-in", "FedAvg", "Krum"):
        run_covert(
            tmp_path / name, STRATEGIES[name], [1, 2, 5], app=make_app(train=prune), arrays=arrays
        )
        for query in read_queries(tmp_path / name):
            assert not np.signbit(query.weights[query.weights == 0.0]).any()


def count_replies(make: Callable[[Any], Strategy], out: Path) -> list[int]:
    """Numbers of replies that a strategy's own function for metrics is given."""
    calls: list[int] = []

    def note(contents: Any, key: str) -> MetricRecord:
        calls.append(len(contents))
        assert all(content["metrics"]["train_loss"] == 0.5 for content in contents)
        return MetricRecord()

    run_covert(out, lambda: make(note), [1, 3, 4])
    return calls


def test_own_metrics_are_given_all_replies(tmp_path: Path) -> None:
    calls = count_replies(lambda note: FedAvg(train_metrics_aggr_fn=note), tmp_path)
    # For the truth, for the decoy, and for what comes back to the user.
    assert calls == [NODES] * 3 * ROUNDS


def fail_in(rounds: Sequence[int]) -> type[Strategy]:
    """A strategy whose aggregations fail in some rounds, on all trajectories."""

    class Fails(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            replies = list(replies)
            if int(replies[0].metadata.group_id) in rounds:
                raise AggregationError("not now")
            return super().aggregate_train(server_round, replies)

    return Fails


@pytest.mark.parametrize("learns", [range(1, ROUNDS + 1), [], [1, 3, 4]])
def test_a_round_whose_aggregation_fails_is_not_accepted(
    learns: Sequence[int], tmp_path: Path
) -> None:
    run_covert(tmp_path, fail_in((2, 3, 6)), learns)
    expected = [number not in (2, 3, 6) for number in range(1, ROUNDS + 1)]
    assert read_column(tmp_path, "accepted") == expected
    updated = [number in learns for number in range(1, ROUNDS + 1)]
    assert read_column(tmp_path, "updated") == np.logical_and(expected, updated).tolist()


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("engine", ["simulated", "flower"])
@pytest.mark.parametrize("policy", ["always-learn", "always-obfuscate"])
def test_a_step_that_is_not_finite_is_not_accepted(
    engine: str, policy: str, tmp_path: Path
) -> None:
    optimizer = {"name": "sgd", "lr": 1e300}
    changes: dict[str, Any] = {
        "federation": {"algorithm": "fedsgd", "optimizer": optimizer},
        "policy": {"kind": policy},
        "decoy": {"gated": True},
        "engine": {"kind": engine},
        "rounds": 3,
        "updates": 3,
    }
    train(make_digits("mirrored", 3, **changes), tmp_path)
    assert read_column(tmp_path, "accepted") == [False] * 3
    assert len({query.weights.tobytes() for query in read_queries(tmp_path)}) == 1


# --- a server that is killed in the middle of a round ---------------------------------------------
#
# A client compares the query of the round that was cut off with the one it gets after the restart.
# Where the first weights are drawn anew, or the policy decides anew, the two differ in rounds of
# one kind only, and name the action.


CUTS = ("before the query", "while replies come", "after the replies", "before the checkpoint")
Note = Callable[[str, object], None]


class Cut(BaseException):
    """The end of a process, as far as a test can feel it."""


class CutGrid(InProcessGrid):
    """A grid at which the server ends in a round, before, during or after its exchange."""

    def __init__(self, witness: Witness, cut: str, at: int, first_round: int = 1) -> None:
        super().__init__(make_app(witness), NODES, first_round=first_round)
        self._cut, self._at = cut, at

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Deliver messages, and end where it is due."""
        messages, number = list(messages), self._round
        if number == self._at and self._cut == CUTS[0]:
            raise Cut
        if number == self._at and self._cut == CUTS[1]:
            super().push_messages(messages[:2])
            raise Cut
        names = super().push_messages(messages)
        if number == self._at and self._cut == CUTS[2]:
            raise Cut
        return names


def end_before_checkpoint(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """End the process when the checkpoint of a round is about to be written."""
    write = checkpoint_file.write_checkpoint

    def fatal(folder: Path, checkpoint: Checkpoint, *others: Any) -> int:
        if checkpoint.round == at:
            raise Cut
        return write(folder, checkpoint, *others)

    monkeypatch.setattr(run_folder, "write_checkpoint", fatal)


def end_after(at: int) -> Callable[[RunProgress], None]:
    def end(progress: RunProgress) -> None:
        if progress.round == at:
            raise Cut

    return end


def serve(
    out: Path, grid: InProcessGrid, *, rounds: int = 4, has_buffers: bool = False, **options: Any
) -> None:
    """Run the server app of the example: its first weights are drawn anew at every start."""
    scheme = {**RUN, "horizon": {"rounds": 4, "updates": 2}, **options.pop("changes", {})}
    strategy = CovertStrategy(
        options.pop("make_strategy", FedAvg),
        run=scheme,
        out=out,
        task=make_task(),
        decoy_start="fresh",
        **options,
    )
    # Arrays that are not trained are drawn anew as well.
    buffers = {"scale": torch.rand(2), "count": torch.randint(999, ())} if has_buffers else {}
    first = ArrayRecord({**make_model().state_dict(), **buffers})
    strategy.start(grid=grid, initial_arrays=first, num_rounds=rounds)


def restart(
    out: Path,
    cut: str,
    at: int,
    monkeypatch: pytest.MonkeyPatch,
    *,
    longer: int = 4,
    **options: Any,
) -> tuple[set[bytes], set[bytes]]:
    """Return what clients are sent in a round that is cut off, before and after the restart."""
    before, after = Witness(), Witness()
    with monkeypatch.context() as patch, pytest.raises(Cut):
        if cut == CUTS[3]:
            end_before_checkpoint(patch, at)
        serve(out, CutGrid(before, cut, at), **options)
    with pytest.raises(Cut):
        grid = CutGrid(after, "", at, first_round=at)
        serve(out, grid, rounds=longer, resume=True, on_round=end_after(at), **options)
    return find_queries(before, at), find_queries(after, at)


def find_queries(witness: Witness, number: int) -> set[bytes]:
    return {content for _, sent_in, content in witness.weights if sent_in == number}


@pytest.mark.slow
def test_a_restart_in_round_1_names_no_action(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Note
) -> None:
    runs, right = attack_seeds(), 0
    for number in range(runs):
        learns, cut = number % 2 == 0, CUTS[1 + number // 2 % 3]
        policy = Scheduled(frozenset({5} if learns else ()))  # round 5 of 8 is the first of 4
        sent, again = restart(tmp_path / str(number), cut, 1, monkeypatch, policy=policy)
        assert len(sent) == len(again) == 1
        right += learns == (sent != again)
    require_guess(record_property, "action named by a restart in round 1", right, runs)


@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("cut", CUTS)
def test_the_query_after_a_restart_is_the_one_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: str, learns: bool, at: int
) -> None:
    options: dict[str, Any] = {
        "make_strategy": FedAdam,
        "policy": Scheduled(frozenset({4 + at} if learns else ())),
        "seed": 3,
    }
    sent, again = restart(tmp_path / "run", cut, at, monkeypatch, **options)
    assert len(again) == 1
    assert sent == (set() if cut == CUTS[0] else again)
    [line] = [line for line in read_rounds(tmp_path / "run") if line["round"] == at]
    assert line["action"] == ("learn" if learns else "obfuscate")


@pytest.mark.parametrize("learns", [True, False])
def test_arrays_that_are_not_trained_stay_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, learns: bool
) -> None:
    for at in (1, 2):
        policy = Scheduled(frozenset({4 + at} if learns else ()))
        options: dict[str, Any] = {"policy": policy, "has_buffers": True}
        sent, again = restart(tmp_path / str(at), CUTS[2], at, monkeypatch, **options)
        assert sent == again


@pytest.mark.slow
def test_more_rounds_after_a_cut_do_not_change_the_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Note
) -> None:
    runs, changed = max(15, attack_seeds() // 4), 0
    for number in range(runs):
        kind = ("optimal", "random", "minority")[number % 3]
        changes = {"policy": {"kind": kind}}
        sent, again = restart(
            tmp_path / str(number),
            CUTS[1 + number % 3],
            2 + number % 2,
            monkeypatch,
            longer=20,
            changes=changes,
            seed=number,
        )
        changed += sent != again
    record_property("other query after a resume with more rounds", f"{changed} of {runs}")
    assert changed == 0


@pytest.mark.parametrize("kind", ["optimal", "random", "minority"])
def test_a_simulated_run_with_more_rounds_repeats_the_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for seed in range(6):
        out, at = tmp_path / str(seed), 2 + seed % 3
        changes: dict[str, Any] = {"seed": seed, "policy": {"kind": kind}}
        with monkeypatch.context() as patch, pytest.raises(Cut):
            end_before_checkpoint(patch, at)
            train(make_run(HORIZON, **changes), out)
        sent = read_rounds(out, "public/rounds.jsonl")
        assert len(sent) == at
        with pytest.raises(Cut):
            longer = make_run(HORIZON, **changes, rounds=40)
            train(longer, out, resume=True, on_round=end_after(at))
        assert read_rounds(out, "public/rounds.jsonl") == sent


# --- how much the server works between two queries ------------------------------------------------
#
# A client measures the time from its reply to the next query.  The server trains a decoy in every
# round, also in those whose training it discards; if that took more rows or batches in rounds of
# one kind, or with other weights, times would name the action.


# Jobs, rows and batches of the server's training, and rows that it predicts.
Work = tuple[int, int, int, int]
PUBLIC = 75
LEARNS = (2, 3, 5, 8)
OTHERS = (1, 4, 6, 7)


class Count:
    """The work of each round."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rounds: list[Work] = []
        self._now = np.zeros(4, dtype=np.int64)
        run, predict = MlpKernel.run, MlpKernel.predict

        def counted_run(kernel: MlpKernel, jobs: Sequence[LocalJob]) -> Any:
            for job in jobs:
                batches = -(-len(job.rows) // job.batch_size)
                self._now += (1, len(job.rows), batches, 0)
            return run(kernel, jobs)

        def counted_predict(kernel: MlpKernel, weights: Any, features: Any) -> Any:
            self._now += (0, 0, 0, len(features))
            return predict(kernel, weights, features)

        monkeypatch.setattr(MlpKernel, "run", counted_run)
        monkeypatch.setattr(MlpKernel, "predict", counted_predict)

    def begin(self, number: int, _arrays: ArrayRecord) -> None:
        """Forget what was done before the first round."""
        if number == 0:
            self._now[:] = 0

    def end_round(self, _progress: Any) -> None:
        """Note the work of the round that has ended."""
        jobs, rows, batches, predicted = (int(number) for number in self._now)
        self.rounds.append((jobs, rows, batches, predicted))
        self._now[:] = 0


def make_public_task(classes: int) -> Any:
    """A task whose public set has 30% positives, or three classes."""
    generator = np.random.default_rng(1)
    kinds = (generator.random(PUBLIC) < 0.3) if classes == 1 else np.arange(PUBLIC) % classes
    features = generator.normal(size=(PUBLIC, 3)).astype(np.float32)
    features[:, 0] += kinds
    is_binary = classes == 1
    data = Examples(features, kinds.astype(np.float32) if is_binary else kinds.astype(np.int64))
    return make_server_task(
        lambda: make_perceptron(classes),
        "binary" if is_binary else "multiclass",
        data,
        data,
        clients=NODES,
        examples=40,
    )


def make_perceptron(classes: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, classes))


def pull_far(message: Message, context: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Train towards weights at which the model's loss is large."""
    return {name: 20.0 * values for name, values in nudge(message, context).items()}


def count_work(
    out: Path,
    decoy: str,
    learns: Sequence[int],
    monkeypatch: pytest.MonkeyPatch,
    *,
    classes: int = 1,
    train: Train = nudge,
    **changes: Any,
) -> list[Work]:
    """Return the work of each round of a run that learns in some of them."""
    with monkeypatch.context() as patch:
        count = Count(patch)
        strategy = CovertStrategy(
            changes.pop("make_strategy", FedAvg),
            run={**RUN, "decoy": {"kind": decoy, "gated": False}, **changes},
            out=out,
            task=make_public_task(classes),
            policy=Scheduled(frozenset(learns)),
            decoy_start="fresh",
            seed=7,
            on_round=count.end_round,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            first = ArrayRecord(make_perceptron(classes).state_dict())
        grid = InProcessGrid(make_app(train=train), NODES)
        strategy.start(grid=grid, initial_arrays=first, num_rounds=ROUNDS, evaluate_fn=count.begin)
    return count.rounds


@pytest.mark.slow
@pytest.mark.parametrize("classes", mark_slow([1, 3], [1]))
@pytest.mark.parametrize("decoy", DECOYS)
def test_the_work_of_a_round_does_not_depend_on_the_action(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoy: str, classes: int
) -> None:
    one = count_work(tmp_path / "one", decoy, LEARNS, monkeypatch, classes=classes)
    other = count_work(tmp_path / "other", decoy, OTHERS, monkeypatch, classes=classes)
    assert one == other
    assert len(one) == ROUNDS


@pytest.mark.slow
@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("batch_size", mark_slow([1, 10, 400], [10]))
def test_nor_on_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, classes: int, batch_size: int
) -> None:
    options: dict[str, Any] = {
        "classes": classes,
        "federation": {**RUN["federation"], "batch_size": batch_size},
    }
    near = count_work(tmp_path / "near", "adversarial", LEARNS, monkeypatch, **options)
    far = count_work(
        tmp_path / "far", "adversarial", LEARNS, monkeypatch, train=pull_far, **options
    )
    assert len({*near, *far}) == 1  # the first move of a decoy included


@pytest.mark.slow
def test_nor_with_gradients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {
        "make_strategy": None,
        "federation": {**RUN["federation"], "algorithm": "fedsgd"},
    }
    one = count_work(tmp_path / "one", "adversarial", LEARNS, monkeypatch, **options)
    other = count_work(tmp_path / "other", "adversarial", OTHERS, monkeypatch, **options)
    assert len({*one, *other}) == 1
