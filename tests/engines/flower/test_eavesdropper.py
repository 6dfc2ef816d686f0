"""A client that listens takes part like any other, and what it keeps can be audited."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch")

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

from covertfl.auditing.run import audit_run
from covertfl.engines.flower.client_app import format_client_run, make_client_app
from covertfl.engines.flower.eavesdropper_app import make_eavesdropper_app, record_message
from covertfl.engines.flower.grid import InProcessGrid
from covertfl.engines.flower.strategy import CovertStrategy
from covertfl.errors import InvalidInput
from covertfl.files.text import parse_toml
from covertfl.runs.public import PublicTranscript
from covertfl.runs.settings import RunSettings, build_run, read_run
from covertfl.runs.train import KernelCache
from tests.support.flower_runs import NODES, ROUNDS, make_app, make_first, run_covert
from tests.support.small_runs import make_run, read_column, read_folder, read_rounds

LEARNS = [1, 4, 5]


def read_client_run(settings: RunSettings) -> RunSettings:
    """Return settings reduced to what clients may know."""
    content = parse_toml(format_client_run(settings), settings.name)
    return build_run(content, settings.name, folder=Path("/"))


def test_it_records_the_rounds_in_which_it_is_asked(tmp_path: Path) -> None:
    spied = tmp_path / "spied"
    apps = dict.fromkeys(range(NODES), make_app())
    apps[3] = make_eavesdropper_app(make_app(), spied)
    grid = InProcessGrid(apps, NODES, connected=lambda n: range(NODES if n != 4 else 2))
    run_covert(tmp_path / "run", FedAvg, LEARNS, grid=grid)
    plain = InProcessGrid(make_app(), NODES, connected=lambda n: range(NODES if n != 4 else 2))
    run_covert(tmp_path / "plain", FedAvg, LEARNS, grid=plain)
    assert read_folder(tmp_path / "run") == read_folder(tmp_path / "plain")  # nobody notices

    records = PublicTranscript(spied).records
    assert [record.round for record in records] == [1, 2, 3, 5, 6, 7, 8]
    sent = {r["round"]: r["weights"] for r in read_rounds(tmp_path / "run", "public/rounds.jsonl")}
    assert [record.weights for record in records] == [sent[record.round] for record in records]
    assert len(read_rounds(spied, "metadata.jsonl")) == len(records)
    found = audit_run(spied, KernelCache(), names=["majority", "repeat"])
    assert found.num_queries == len(records)


def test_evaluations_are_kept_apart(tmp_path: Path) -> None:
    spied = tmp_path / "spied"
    app = make_eavesdropper_app(make_app(), spied)
    run_covert(tmp_path / "run", FedAvg, LEARNS, evaluate=True, app=app)
    trained, evaluated = (read_rounds(spied, f"{n}.jsonl") for n in ("rounds", "evaluations"))
    assert len(trained) == len(evaluated) == ROUNDS * NODES
    assert {r["weights"] for r in trained} == {r["weights"] for r in evaluated}


def test_without_a_round_it_counts_by_itself(tmp_path: Path) -> None:
    InProcessGrid(make_app(), 1)  # messages need a run
    for _ in range(3):
        content = RecordDict({"arrays": make_first(), "config": ConfigRecord({})})
        record_message(Message(content, 1000, "train"), tmp_path, "rounds.jsonl")
    assert [r["round"] for r in read_rounds(tmp_path, "rounds.jsonl")] == [1, 2, 3]


# --- the client app of a run file ---


def test_clients_are_told_nothing_of_policy_and_decoy(tmp_path: Path) -> None:
    settings = make_run(policy={"kind": "greedy"}, decoy={"kind": "mirrored"})
    path, text = tmp_path / "client.toml", format_client_run(settings)
    assert set(parse_toml(text, "client.toml")) == {"task", "data", "federation"}
    path.write_text(text)
    for word in ("policy", "decoy", "oracle", "horizon", "cost", "secret", "2, 4, 6"):
        assert word not in path.read_text()
    read = read_run(path).sections
    assert read == read_client_run(settings).sections
    assert read.data == settings.sections.data.model_copy(update={"seed": settings.seed})
    assert read.federation.optimizer == settings.sections.federation.optimizer


def test_a_deployed_run_draws_its_actions_from_a_secret(tmp_path: Path) -> None:
    """Clients know the run file's seed: what they could draw from it must not be what was done."""
    settings = make_run(policy={"kind": "random"}, engine={"kind": "flower", "mode": "deployment"})
    actions = []
    for number in range(3):
        app = make_client_app(read_client_run(settings))
        grid = InProcessGrid(app, 6)
        strategy = CovertStrategy(run=settings, out=tmp_path / str(number))
        strategy.start(grid)
        actions.append(read_column(tmp_path / str(number), "action"))
        assert read_column(tmp_path / str(number), "clients") == [[0, 1, 2, 3, 4, 5]] * 12
        assert not any(read_column(tmp_path / str(number), "rejected"))
        # Own draws of their batches: some have none, and none has too many.
        batches = [count for row in read_column(tmp_path / str(number), "batches") for count in row]
        assert 0 in batches and max(batches) > 5
    assert len({tuple(taken) for taken in actions}) > 1


@pytest.mark.parametrize("partition", [None, -1, 6, "0", True])
def test_a_node_must_know_which_client_it_is(partition: Any, tmp_path: Path) -> None:
    settings = make_run()
    app = make_client_app(settings)
    grid = InProcessGrid(app, 6)
    context = grid.contexts[0]
    context.node_config.clear()
    if partition is not None:
        context.node_config["partition-id"] = partition
    content = RecordDict({"arrays": make_first(), "config": ConfigRecord({"server-round": 1})})
    with pytest.raises(InvalidInput, match="partition-id"):
        app(Message(content, 1000, "train"), context)
