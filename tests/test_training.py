"""Training runs from settings to finished folders."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from covertfl.arrays import IntArray
from covertfl.errors import InvalidInput
from covertfl.kernels.job import LocalOptimizer
from covertfl.kernels.weights import Layout, Vector
from covertfl.models.export import export_model
from covertfl.runs.build import KernelCache, build_federation
from covertfl.runs.checkpoint import read_checkpoint
from covertfl.runs.clients import ClientResponder
from covertfl.runs.progress import OnRound, RunProgress
from covertfl.runs.public import PublicTranscript
from covertfl.runs.run_file import format_run, read_run
from covertfl.tasks.task import TrainingTask
from covertfl.training import is_finished, train, train_all
from tests.support.small_runs import (
    FUNCTION_QUEUE,
    HORIZON,
    QUEUE,
    make_run,
    read_column,
    read_folder,
    read_rounds,
    run_small,
)

pytest.importorskip("torch")
import torch
from torch.nn import Module, Parameter
from torch.optim import Optimizer


class Stopped(Exception):
    """Stands for a run that is cut short."""


def stop_after(rounds: int) -> OnRound:
    def tell(progress: RunProgress) -> None:
        if progress.round == rounds:
            raise Stopped

    return tell


def read_arrays(out: Path) -> Mapping[str, Vector]:
    checkpoint = read_checkpoint(out)
    assert checkpoint is not None
    return checkpoint.arrays


# --- against a plain PyTorch loop ---


def make_torch_optimizer(parameters: Iterator[Parameter], optimizer: LocalOptimizer) -> Optimizer:
    settings: dict[str, Any] = {"lr": optimizer.lr, "weight_decay": optimizer.weight_decay}
    if optimizer.name == "sgd":
        return torch.optim.SGD(parameters, momentum=optimizer.momentum, **settings)
    kind = torch.optim.Adam if optimizer.name == "adam" else torch.optim.AdamW
    return kind(parameters, **settings)


def load_model(task: TrainingTask, layout: Layout, weights: Vector) -> Module:
    model = task.make_model()
    parts = layout.split(np.array(weights))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(parts[name].copy()))
    return model


def flatten(model: Module) -> npt.NDArray[np.float32]:
    return np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])


def measure_loss(model: Module, task: TrainingTask, rows: IntArray) -> torch.Tensor:
    outputs = model(torch.from_numpy(task.train.features[rows]))
    return torch.nn.functional.cross_entropy(outputs, torch.from_numpy(task.train.labels[rows]))


@pytest.mark.parametrize("model", ["logistic", "mlp"])
@pytest.mark.parametrize(
    "optimizer",
    [
        {"name": "adam"},
        {"name": "sgd", "lr": 0.1, "momentum": 0.9},
        {"name": "adamw", "weight_decay": 0.1},
    ],
)
def test_fedavg_is_the_plain_loop_over_clients(
    tmp_path: Path, model: str, optimizer: dict[str, Any]
) -> None:
    changes: dict[str, Any] = {
        "rounds": 1,
        "policy": {"kind": "always-learn"},
        "data": {"model": model},
        "federation": {"participation": [6, 6, 6], "min_share": 0.0, "optimizer": optimizer},
    }
    summary = run_small(tmp_path / "run", **changes)
    assert summary.updates_done == 1
    federation = build_federation(make_run(**changes), KernelCache())
    responder = federation.responder
    assert isinstance(responder, ClientResponder)
    task, layout = responder.task, responder.layout
    [record] = read_rounds(tmp_path / "run")
    public = PublicTranscript(tmp_path / "run" / "public")
    sent = layout.join(public.read_weights(public.records[0].weights))

    total, examples = np.zeros(layout.size), 0
    for client, batches in zip(record["clients"], record["batches"], strict=True):
        if batches == 0:
            continue
        # Only the order of a client's examples is taken from the run.
        rows = responder.make_client_job(client, batches, sent, 1).rows
        module = load_model(task, layout, sent)
        local = make_torch_optimizer(module.parameters(), responder.optimizer)
        for start in range(0, len(rows), 20):
            local.zero_grad()
            torch.autograd.backward(measure_loss(module, task, rows[start : start + 20]))
            local.step()
        total += flatten(module) * len(rows)
        examples += len(rows)
    assert examples == record["examples"] > 500
    trained = read_arrays(tmp_path / "run")["true"]
    np.testing.assert_allclose(trained, total / examples, rtol=0, atol=1e-5)
    assert np.abs(trained - sent).max() > 1e-3


@pytest.mark.parametrize(
    "optimizer",
    [
        {"name": "sgd", "lr": 0.1},
        {"name": "adam", "lr": 0.01},
        {"name": "sgd", "lr": 0.05, "momentum": 0.9},
    ],
)
def test_fedsgd_with_one_client_is_the_optimiser(tmp_path: Path, optimizer: dict[str, Any]) -> None:
    changes: dict[str, Any] = {
        "rounds": 6,
        "policy": {"kind": "always-learn"},
        "federation": {
            "clients": 1,
            "participation": [1, 1, 1],
            "min_share": 0.0,
            "algorithm": "fedsgd",
            "optimizer": optimizer,
        },
    }
    summary = run_small(tmp_path / "run", **changes)
    federation = build_federation(make_run(**changes), KernelCache())
    responder = federation.responder
    assert isinstance(responder, ClientResponder)
    task, layout = responder.task, responder.layout
    public = PublicTranscript(tmp_path / "run" / "public")
    first = layout.join(public.read_weights(public.records[0].weights))
    module = load_model(task, layout, first)
    server = make_torch_optimizer(module.parameters(), responder.optimizer)
    steps = 0
    for record in read_rounds(tmp_path / "run"):
        if not record["updated"]:
            continue
        rows = responder.make_client_job(0, record["batches"][0], first, record["round"]).rows
        server.zero_grad()
        torch.autograd.backward(measure_loss(module, task, rows))
        server.step()
        steps += 1
    assert steps == summary.updates_done > 3
    trained = read_arrays(tmp_path / "run")["true"]
    np.testing.assert_allclose(trained, flatten(module), rtol=0, atol=1e-5)


# --- the same bytes ---


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        run_small(tmp_path / name, seed=seed)
    assert read_folder(tmp_path / "a") == read_folder(tmp_path / "b")
    assert read_folder(tmp_path / "a") != read_folder(tmp_path / "c")


def test_a_seed_alone_is_the_same_seed_among_several(tmp_path: Path) -> None:
    settings = make_run(seed=5)
    summaries = train(settings, tmp_path / "many", seeds=3)
    assert len(summaries) == 3
    for number in range(3):
        [alone] = train(settings.with_seed(5 + number), tmp_path / f"alone-{number}")
        expected = read_folder(tmp_path / f"alone-{number}")
        assert read_folder(tmp_path / "many" / f"seed-{number}") == expected
        assert alone.exposure == summaries[number].exposure


def test_the_learner_does_not_depend_on_the_decoys_or_on_the_public_set(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"decoy": {"kind": "random", "gated": False}},
        {"data": {"public_classes": 2, "public_class_share": 0.5}},
        {"decoy": {"kind": "adversarial"}},
    ]
    trained = []
    for number, change in enumerate(changes):
        run_small(tmp_path / str(number), policy={"kind": "greedy"}, **change)
        trained.append(read_arrays(tmp_path / str(number))["true"].tobytes())
    assert len(set(trained)) == 1


def test_a_written_run_file_gives_the_run_again(tmp_path: Path) -> None:
    run_small(tmp_path / "a")
    train(read_run(tmp_path / "a" / "run.toml"), tmp_path / "b")
    assert read_folder(tmp_path / "a") == read_folder(tmp_path / "b")


# --- what is on the disk ---


@pytest.mark.parametrize("kind", ["optimal", "always-learn", "always-obfuscate"])
def test_the_public_folder_has_what_was_sent_and_no_more(tmp_path: Path, kind: str) -> None:
    out = tmp_path / "run"
    run_small(out, policy={"kind": kind}, decoy={"count": 2})
    lines = (out / "public/rounds.jsonl").read_text().splitlines()
    assert len(lines) == 12
    for number, line in enumerate(lines, start=1):
        record = json.loads(line)
        assert list(record) == ["round", "client", "weights"]
        assert (record["round"], record["client"]) == (number, None)
    public = PublicTranscript(out / "public")
    sent = {record.weights for record in public.records}
    assert {path.stem for path in (out / "public/weights").iterdir()} == sent
    assert {path.name for path in (out / "public").iterdir()} == {"rounds.jsonl", "weights"}
    headers, sizes = set(), set()
    for name in sent:
        content = (out / "public/weights" / f"{name}.safetensors").read_bytes()
        length = int.from_bytes(content[:8], "little")
        headers.add(content[: 8 + length])
        sizes.add(len(content))
        assert set(public.read_weights(name)) == {"0.weight", "0.bias"}
    assert len(headers) == len(sizes) == 1
    # Lines are of one length but for the digits of the round.
    assert len({len(line) - len(str(json.loads(line)["round"])) for line in lines}) == 1


def test_public_records_agree_with_private_ones(tmp_path: Path) -> None:
    run_small(tmp_path / "run", rounds=30, policy={"kind": "greedy"})
    public = read_rounds(tmp_path / "run", "public/rounds.jsonl")
    private = read_rounds(tmp_path / "run")
    assert [record["weights"] for record in public] == [record["weights"] for record in private]
    assert {record["action"] for record in private} == {"learn", "obfuscate"}
    # Weights of a trajectory change exactly when it has moved since its last query.
    for trajectory in (0, 1):
        own = [record for record in private if record["trajectory"] == trajectory]
        for before, after in pairwise(own):
            assert (before["weights"] != after["weights"]) == before["accepted"]


def test_both_trajectories_begin_with_weights_of_one_scale(tmp_path: Path) -> None:
    run_small(tmp_path / "run", rounds=1)
    arrays = read_arrays(tmp_path / "run")
    deviations = [float(np.std(arrays[name])) for name in ("true", "decoy-1")]
    assert deviations[0] == pytest.approx(deviations[1], rel=0.2)
    assert not np.array_equal(arrays["true"], arrays["decoy-1"])


def test_what_was_done_is_for_the_owner_only(tmp_path: Path) -> None:
    run_small(tmp_path / "run")
    for path in (tmp_path / "run").rglob("*"):
        hidden = {"private", "checkpoint"} & set(path.relative_to(tmp_path / "run").parts)
        if hidden and path.is_dir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "run/metrics.jsonl").stat().st_mode) == 0o600


def test_the_summary_of_a_run(tmp_path: Path) -> None:
    summary = run_small(tmp_path / "run")
    assert json.loads((tmp_path / "run/summary.json").read_text()) == summary.to_dict()
    wanted = {"learner_accuracy", "updates_done", "rounds", "learning_queries", "exposure"}
    wanted |= {"completed", "rejected_replies", "seconds", "success_measured", "success_printed"}
    assert wanted <= set(summary.to_dict())
    records = read_rounds(tmp_path / "run")
    learned = sum(record["action"] == "learn" for record in records)
    assert summary.learning_queries == learned
    assert summary.exposure == learned / 12
    assert summary.updates_done == sum(record["updated"] for record in records)
    assert summary.success_printed == (0.2, 0.5, 0.9)
    metrics = read_rounds(tmp_path / "run", "metrics.jsonl")
    assert metrics[-1]["learner_score"] == summary.learner_accuracy
    assert metrics[-1]["exposure"] == summary.exposure


# --- rounds that do not suffice ---


def test_a_horizon_that_ends_with_updates_owed_says_so_and_goes_on(tmp_path: Path) -> None:
    out, policy = tmp_path / "run", {"kind": "greedy"}
    summary = run_small(out, rounds=3, policy=policy)
    assert not summary.completed
    assert summary.updates_missing == 4 - summary.updates_done > 0
    [longer] = train(make_run(rounds=30, policy=policy), out, resume=True)
    assert longer.completed
    assert longer.rounds == 30
    assert read_column(out, "round") == list(range(1, 31))
    run_small(tmp_path / "at-once", rounds=30, policy=policy)
    assert (
        read_folder(out)["public/rounds.jsonl"]
        == read_folder(tmp_path / "at-once")["public/rounds.jsonl"]
    )
    ended = [read_arrays(path) for path in (out, tmp_path / "at-once")]
    assert all(ended[0][name].tobytes() == ended[1][name].tobytes() for name in ended[0])
    assert read_run(out / "run.toml").rounds == 30


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = run_small(out)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert train(make_run(), out, resume=True) == [first]
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    assert is_finished(make_run(), out)
    assert not is_finished(make_run(rounds=13), out)


def test_more_seeds_are_added_to_finished_ones(tmp_path: Path) -> None:
    train(make_run(), tmp_path, seeds=2)
    before = read_folder(tmp_path)
    train(make_run(), tmp_path, seeds=3, resume=True)
    after = read_folder(tmp_path)
    assert {name: after[name] for name in before} == before
    assert (tmp_path / "seed-2" / "summary.json").exists()


# --- resuming ---

RESUMED = [
    (HORIZON, {"policy": {"kind": "greedy"}, "decoy": {"count": 2}}),
    (HORIZON, {"federation": {"algorithm": "fedsgd"}, "decoy": {"kind": "following"}}),
    (HORIZON, {"decoy": {"kind": "adversarial"}, "policy": {"kind": "minority"}}),
    (QUEUE, {"rounds": 12}),
    (FUNCTION_QUEUE, {"rounds": 12}),
]


@pytest.mark.parametrize(("base", "changes"), RESUMED)
def test_a_run_that_was_cut_anywhere_ends_the_same(
    tmp_path: Path, base: dict[str, Any], changes: dict[str, Any]
) -> None:
    settings = make_run(base, **changes)
    train(settings, tmp_path / "whole")
    expected = read_folder(tmp_path / "whole")
    for rounds in (1, 6, 11, 12):
        out = tmp_path / f"cut-{rounds}"
        with pytest.raises(Stopped):
            train(settings, out, on_round=stop_after(rounds))
        assert not (out / "summary.json").exists()
        train(settings, out, resume=True)
        assert read_folder(out) == expected


@pytest.mark.slow
@pytest.mark.parametrize("base", [HORIZON, QUEUE])
def test_a_live_search_goes_on_where_it_was(tmp_path: Path, base: dict[str, Any]) -> None:
    changes: dict[str, Any] = {"rounds": 40, "federation": {"acceptance": "model"}}
    changes |= {"horizon": {"updates": 20}} if base is HORIZON else {"queue": {"arrival_prob": 0.3}}
    settings = make_run(base, policy={"kind": "spga", "refresh": 7}, **changes)
    train(settings, tmp_path / "whole")
    for rounds in (21, 32):
        out = tmp_path / f"cut-{rounds}"
        with pytest.raises(Stopped):
            train(settings, out, on_round=stop_after(rounds))
        train(settings, out, resume=True)
        assert read_folder(out) == read_folder(tmp_path / "whole")
    run_small(tmp_path / "still", base, policy={"kind": "spga"}, **changes)
    live = read_column(tmp_path / "whole", "learn_prob")
    still = read_column(tmp_path / "still", "learn_prob")
    assert live[:21] == still[:21]  # 21 is the first multiple of 7 with rounds enough
    assert live[21:] != still[21:]


def test_resuming_what_is_not_there_begins_it(tmp_path: Path) -> None:
    train(make_run(), tmp_path / "run", resume=True)
    run_small(tmp_path / "whole")
    assert read_folder(tmp_path / "run") == read_folder(tmp_path / "whole")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 4}, "seed = 3, got 4"),
        ({"policy": {"kind": "greedy"}}, "kind = 'optimal', got 'greedy'"),
        ({"data": {"model": "mlp"}}, "model = 'logistic', got 'mlp'"),
        ({"horizon": {"updates": 5}}, "updates = 4, got 5"),
    ],
)
@pytest.mark.parametrize("ended", [True, False])
def test_another_run_is_not_resumed(
    tmp_path: Path, changes: dict[str, Any], said: str, ended: bool
) -> None:
    out = tmp_path / "run"
    if ended:
        run_small(out)
    else:
        with pytest.raises(Stopped):
            run_small(out, on_round=stop_after(4))
    before = read_folder(out)
    with pytest.raises(InvalidInput, match=f"holds another run and cannot be resumed: .*{said}"):
        train(make_run(**changes), out, resume=True)
    assert read_folder(out) == before


def change_format(out: Path, line: str) -> None:
    settings = out / "run.toml"
    settings.write_text(settings.read_text().replace("format = 1\n", line))


def test_a_folder_without_a_format_is_resumed(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        run_small(tmp_path / "run", on_round=stop_after(4))
    change_format(tmp_path / "run", "")
    train(make_run(), tmp_path / "run", resume=True)
    run_small(tmp_path / "whole")
    assert read_folder(tmp_path / "run") == read_folder(tmp_path / "whole")


def test_a_folder_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run_small(out, FUNCTION_QUEUE, rounds=4)
    change_format(out, "format = 2\nunheard_of = 1\n")
    before = read_folder(out)
    for refuse in (
        lambda: train(make_run(FUNCTION_QUEUE, rounds=4), out, resume=True),
        lambda: export_model(out, tmp_path / "model.safetensors"),
    ):
        with pytest.raises(InvalidInput, match=r"run\.toml: .*a newer version wrote the file"):
            refuse()
    assert read_folder(out) == before


def test_a_folder_that_exists_is_replaced_by_force_only(tmp_path: Path) -> None:
    run_small(tmp_path / "run")
    before = read_folder(tmp_path / "run")
    with pytest.raises(InvalidInput, match="exists: use --resume to continue the run"):
        run_small(tmp_path / "run", seed=9)
    assert read_folder(tmp_path / "run") == before
    train(make_run(seed=9), tmp_path / "run", force=True)
    run_small(tmp_path / "other", seed=9)
    assert read_folder(tmp_path / "run") == read_folder(tmp_path / "other")


def test_one_folder_in_the_way_stops_all_before_anything_is_made(tmp_path: Path) -> None:
    run_small(tmp_path / "seed-1")
    with pytest.raises(InvalidInput, match="seed-1 exists"):
        train(make_run(), tmp_path, seeds=3)
    assert [path.name for path in tmp_path.iterdir()] == ["seed-1"]


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    settings = make_run()
    with pytest.raises(InvalidInput, match="exists"):
        train_all([(settings, tmp_path / "run"), (settings, tmp_path / "run")])


# --- participation and arrivals from files ---


def write_log(path: Path, rounds: int = 12, *, most: int = 6) -> Path:
    generator = np.random.default_rng(0)
    lines = ["round,clients,examples,success,arrival"]
    for number in range(1, rounds + 1):
        arrival = 3 * int(generator.random() < 0.2)
        clients, success = generator.integers(0, most + 1), generator.integers(0, 2)
        lines.append(f"{number},{clients},100,{success},{arrival}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("acceptance", ["model", "data"])
def test_a_log_is_replayed(tmp_path: Path, acceptance: str) -> None:
    log = write_log(tmp_path / "log.csv", 40)
    federation = {"log": str(log), "acceptance": acceptance}
    run_small(tmp_path / "run", QUEUE, rounds=30, federation=federation)
    rows = [line.split(",") for line in log.read_text().splitlines()[1:31]]
    records = read_rounds(tmp_path / "run")
    assert [len(record["clients"]) for record in records] == [int(row[1]) for row in rows]
    assert [record["arrival"] for record in records] == [int(row[4]) for row in rows]
    nearest = [int(np.argmin(np.abs(np.array([2, 4, 6]) - int(row[1])))) for row in rows]
    assert [record["oracle_state"] for record in records] == nearest
    if acceptance == "model":
        for record, row in zip(records, rows, strict=True):
            assert record["accepted"] == (row[3] == "1" and record["examples"] > 0)


@pytest.mark.parametrize(
    ("rounds", "most", "said"),
    [(8, 6, "at least 12 rounds for this run, got 8"), (12, 9, "clients must be at most 6")],
)
def test_a_log_that_does_not_fit_is_refused(
    tmp_path: Path, rounds: int, most: int, said: str
) -> None:
    log = write_log(tmp_path / "log.csv", rounds, most=most)
    with pytest.raises(InvalidInput, match=said) as caught:
        run_small(tmp_path / "run", federation={"log": str(log)})
    assert "log.csv" in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_arrivals_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.csv"
    path.write_text("round,updates\n2,3\n5,0\n9,1\n500,7\n")
    summary = run_small(tmp_path / "run", FUNCTION_QUEUE, rounds=20, arrivals=str(path))
    arrivals = {record["round"]: record["arrival"] for record in read_rounds(tmp_path / "run")}
    assert {number: size for number, size in arrivals.items() if size} == {2: 3, 9: 1}
    assert summary.tasks_arrived == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "first line must be round,updates, got nothing"),
        ("when,what\n1,2\n", "first line must be round,updates, got when,what"),
        ("round,updates\n1,two\n", "line 2: updates must be a whole number in 0.."),
        ("round,updates\n1\n", "line 2: updates must be a whole number"),
        ("round,updates\n0,2\n", "line 2: round must be a whole number in 1.."),
        ("round,updates\n1,-2\n", "line 2: updates must be"),
        ("round,updates\n1,99999999999999999999\n", "line 2: updates must be"),
        ("round,updates\n1,2\n3,1\n1,1\n", "line 4: round must occur once, got 1 again"),
    ],
)
def test_bad_files_of_arrivals_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "arrivals.csv"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=said) as caught:
        run_small(tmp_path / "run", FUNCTION_QUEUE, arrivals=str(path))
    assert "arrivals.csv" in str(caught.value)


# --- refusals ---


@pytest.mark.parametrize(
    ("base", "changes", "said"),
    [
        (HORIZON, {"engine": {"device": "tpu"}}, "device must be cpu or cuda, got 'tpu'"),
        (HORIZON, {"data": {"model": "giant"}}, "mlp or logistic, got giant"),
        (HORIZON, {"decoy": {"kind": "ghost"}}, "decoy kind must be .*got 'ghost'"),
        (HORIZON, {"federation": {"participation": [2, 6]}}, "must have 3 numbers.*got 2"),
        (HORIZON, {"federation": {"log": "/none.csv"}}, "none.csv does not exist"),
        (HORIZON, {"federation": {"clients": 5000}}, "run.toml"),
        (FUNCTION_QUEUE, {"decoy": {"count": 2}}, r"\[decoy\] count must be 1 .*got 2"),
        (HORIZON, {"policy": {"kind": "file", "path": "/none.json"}}, "none.json"),
        (QUEUE, {"arrivals": "/none.csv"}, "none.csv"),
    ],
)
def test_runs_that_cannot_be_are_refused_before_a_folder_is_made(
    tmp_path: Path, base: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said) as caught:
        run_small(tmp_path / "run", base, **changes)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("seeds", [0, -3])
def test_there_must_be_a_seed(tmp_path: Path, seeds: int) -> None:
    with pytest.raises(InvalidInput, match="seeds must be at least 1"):
        train(make_run(), tmp_path, seeds=seeds)


def test_seeds_must_not_run_out(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"the last seed at most .*, got 2 seeds"):
        train(make_run(seed=2**63 - 1), tmp_path, seeds=2)


def test_a_checkpoint_that_was_changed_stops_a_resume(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(Stopped):
        run_small(out, on_round=stop_after(5))
    file = out / "checkpoint/state.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 0x10
    file.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"state\.safetensors is damaged"):
        train(make_run(), out, resume=True)


# --- the rest ---


def test_measured_chances_are_reported_beside_the_printed_ones(tmp_path: Path) -> None:
    data = run_small(tmp_path / "data")
    model = run_small(tmp_path / "model", federation={"acceptance": "model"})
    assert data.success_measured == pytest.approx(model.success_measured, abs=0.02)
    assert data.success_measured != data.success_printed


@pytest.mark.parametrize("kind", ["random", "mirrored", "public", "adversarial", "following"])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd"])
def test_every_decoy_runs_to_the_end(tmp_path: Path, kind: str, algorithm: str) -> None:
    out = tmp_path / "run"
    run_small(
        out, decoy={"kind": kind, "gated": False}, federation={"algorithm": algorithm}, rounds=6
    )
    arrays = read_arrays(out)
    assert np.isfinite(arrays["decoy-1"]).all()
    sent = read_rounds(out)
    decoys = [record["weights"] for record in sent if record["trajectory"] == 1]
    assert len(set(decoys)) > 1


def test_a_function_is_minimised_by_the_learner(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"rounds": 100, "policy": {"kind": "always-learn"}}
    summary = run_small(tmp_path / "run", FUNCTION_QUEUE, **changes)
    metrics = read_rounds(tmp_path / "run", "metrics.jsonl")
    assert summary.learner_accuracy is None
    assert summary.learner_value < 0.5 * metrics[0]["learner_score"]
    assert summary.learner_value == metrics[-1]["learner_score"]


def test_progress_is_told_after_every_round(tmp_path: Path) -> None:
    told: list[RunProgress] = []
    run_small(tmp_path / "run", on_round=told.append)
    assert [progress.round for progress in told] == list(range(1, 13))
    metrics = read_rounds(tmp_path / "run", "metrics.jsonl")
    assert [progress.exposure for progress in told] == [line["exposure"] for line in metrics]
    assert [progress.backlog for progress in told] == [line["backlog"] for line in metrics]


def test_versions_are_written_down(tmp_path: Path) -> None:
    run_small(tmp_path / "run")
    text = (tmp_path / "run/run.toml").read_text()
    assert f'torch = "{torch.__version__}"' in text
    assert format_run(make_run(), {}) in text.replace(
        text[text.index("[versions]") :], "[versions]\n"
    )
