"""A log from fit to audit: every round has the state and the acceptance that it was fitted with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import covertfl as cf
from covertfl.intervals import wilson_interval
from tests.support.commands import EXAMPLE_LOG, Run
from tests.support.small_runs import read_column, read_folder

pytestmark = pytest.mark.slow

pytest.importorskip("torch")

RUN_FILE = """
task = "digits"
problem = "problem.toml"
{rounds}
[data]
model = "logistic"
[federation]
{federation}
batch_size = 20
[engine]
{engine}
"""


@pytest.fixture
def fitted_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("log.csv").write_text(Path(EXAMPLE_LOG).read_text())
    return tmp_path


def write_run(name: str, *, rounds: int, federation: str = "", engine: str = "") -> str:
    text = RUN_FILE.format(rounds=f"rounds = {rounds}", federation=federation, engine=engine)
    Path(name).write_text(text)
    return name


@pytest.mark.parametrize(
    ("rounds", "options"),
    [(150, ()), pytest.param(600, ("--cuts", "8,15"), marks=pytest.mark.slow)],
)
def test_a_log_from_fit_to_audit(
    fitted_folder: Path, run: Run, rounds: int, options: tuple[str, ...]
) -> None:
    run("fit", "log.csv", *options, "--min-examples", 6800, "-o", "problem.toml")
    planned = run("plan", "problem.toml", "--json").content
    solved = run("solve", "problem.toml", "--json").content
    assert f"{solved['learn_fraction']:.1%} are with" in planned["advice"]
    replayed = write_run("run.toml", rounds=rounds, federation='log = "log.csv"')
    trained = run("train", replayed, "--out", "replayed", "--json").content["runs"][0]
    cuts = (8.0, 15.0) if options else None
    fitted = cf.fit("log.csv", cuts=cuts, min_examples=6800).details
    out = fitted_folder / "replayed"
    assert read_column(out, "oracle_state") == fitted.states[:rounds].tolist()
    assert read_column(out, "accepted") == fitted.succeeded[:rounds].tolist()
    assert read_column(out, "arrival") == fitted.arrivals[:rounds].tolist()
    assert trained["success_measured"] == trained["success_printed"]
    # As if rounds were independent: they are not, so that the true interval is wider.
    low, high = wilson_interval(trained["learning_queries"], rounds)
    assert low <= solved["learn_fraction"] <= high
    audited = run("audit", "replayed", "--rehearsals", "0", "--json").content
    assert audited["mismatch"]["p_value"] > 0.01
    assert audited["warnings"] == []


def test_rounds_are_drawn_with_the_clients_of_the_fitted_states(
    fitted_folder: Path, run: Run
) -> None:
    run("fit", "log.csv", "--min-examples", 6800, "-o", "problem.toml")
    drawn = write_run("drawn.toml", rounds=40, federation='acceptance = "model"')
    assert run("train", drawn, "--out", "drawn").status == 0
    present = [len(clients) for clients in read_column(fitted_folder / "drawn", "clients")]
    states = read_column(fitted_folder / "drawn", "oracle_state")
    assert present == [(5, 9, 17)[state] for state in states]
    refused = run("train", write_run("data.toml", rounds=40), "--out", "data")
    assert refused.status == 2
    assert "[states] min_examples must be at most" in refused.err


@pytest.mark.parametrize("federation", ['log = "log.csv"', 'acceptance = "model"'])
@pytest.mark.parametrize("column", ["clients", "examples"])
def test_flower_acts_in_the_same_states(
    fitted_folder: Path, run: Run, federation: str, column: str
) -> None:
    pytest.importorskip("flwr")
    run("fit", "log.csv", "--column", column, "--min-examples", 6800, "-o", "problem.toml")
    for name, engine in (("simulated", ""), ("flower", 'kind = "flower"')):
        file = write_run(f"{name}.toml", rounds=8, federation=federation, engine=engine)
        assert run("train", file, "--out", name).status == 0
    simulated, flower = (
        read_folder(fitted_folder / name) | {"run.toml": b""} for name in ("simulated", "flower")
    )
    assert simulated == flower


@pytest.mark.parametrize(
    ("federation", "said"),
    [
        ("participation = [5, 6, 17]", "participation[1] must be a number of clients of oracle"),
        ("participation = [5, 10]", "participation must have 3 numbers"),
        ("clients = 10", "participation must be at most clients = 10, got 17"),
        ('log = "other.csv"', "other.csv has no column clients"),
        ('log = "small.csv"', "small.csv must have at least 40 rounds for this run, got 2"),
    ],
)
def test_a_federation_of_other_states_is_refused(
    fitted_folder: Path, run: Run, federation: str, said: str
) -> None:
    run("fit", "log.csv", "--min-examples", 6800, "-o", "problem.toml")
    Path("other.csv").write_text("round,examples\n1,5\n")
    Path("small.csv").write_text("round,clients,examples\n1,5,9\n2,5,9\n")
    refused = run("train", write_run("run.toml", rounds=40, federation=federation), "--out", "run")
    assert refused.status == 2
    assert said in refused.err
    assert refused.err.count("\n") <= 2
    assert not (fitted_folder / "run").exists()


def write_quality_log(path: Path) -> None:
    """A log whose states are by the quality of the data, with six to eight clients in any state."""
    generator = np.random.default_rng(8)
    lines, state = ["round,clients,quality,success"], 1
    for number in range(1, 201):
        clients, quality = generator.integers(6, 9), (state + generator.random()) / 3
        success = generator.random() < (0.05, 0.5, 0.95)[state]
        lines.append(f"{number},{clients},{quality:.4f},{success:d}")
        state = int(
            generator.choice(3, p=[[0.7, 0.3, 0.0], [0.3, 0.4, 0.3], [0.0, 0.3, 0.7]][state])
        )
    path.write_text("\n".join(lines) + "\n")


def test_a_log_of_data_quality_from_fit_to_audit(fitted_folder: Path, run: Run) -> None:
    write_quality_log(Path("log.csv"))
    fit = ("fit", "log.csv", "--column", "quality", "--cuts", "0.333,0.667", "-o", "problem.toml")
    assert run(*fit, "--rounds", 100, "--updates", 20).status == 0
    fitted = cf.fit("log.csv", column="quality", cuts=(0.333, 0.667)).details
    for name, how in {"replayed": 'log = "log.csv"', "drawn": 'acceptance = "model"'}.items():
        file = write_run(f"{name}.toml", rounds=100, federation=f"clients = 8\n{how}")
        assert run("train", file, "--out", name).status == 0
    audited = run("audit", "replayed", "--rehearsals", "0", "--json").content
    assert audited["mismatch"]["p_value"] > 0.01
    out = fitted_folder / "replayed"
    assert read_column(out, "oracle_state") == fitted.states[:100].tolist()
    assert read_column(out, "accepted") == fitted.succeeded[:100].tolist()
