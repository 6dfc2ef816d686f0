"""What CovertStrategy costs on Flower is measured and judged by one module."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch")

from tests import ROOT
from tests.support.commands import run_python


def make_round(clients: float, **parts: float) -> dict[str, float]:
    return {"clients": clients, **parts}


@pytest.fixture
def costs(load: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], Any]:
    """Return the module, which is given answers by kind instead of running federations."""

    def answer(by_kind: dict[str, Any]) -> Any:
        module = load("flower_costs")
        monkeypatch.setattr(module, "run_process", lambda kind, *_, **__: by_kind[kind])
        return module

    return answer


def test_a_round_is_averaged_over_generations(load: Any) -> None:
    find = load("flower_costs").find_round
    rounds = [make_round(1.0, other=seconds) for seconds in (1.0, 3.0, 2.0, 4.0, 9.0)]
    assert find(rounds) == 1.0 + 2.5
    assert find(rounds, "clients") == 2.5
    assert find(rounds[:1]) == 2.0


def test_repeats_in_both_orders_are_averaged(load: Any) -> None:
    find = load("flower_costs").find_ratio
    assert find([1.2, 1.0, 0.9, 1.1, 3.0, 1.0]) == pytest.approx(1.1)
    assert find([1.5]) == 1.5


@pytest.mark.parametrize(("covert", "verdicts"), [(1.4, ["yes"] * 2), (2.0, ["NO"] * 2)])
def test_whole_rounds_are_judged(costs: Any, covert: float, verdicts: list[str]) -> None:
    stock, own = make_round(9.0, other=1.0), make_round(9.0, other=covert)
    module = costs({"pair": {"stock": [[stock]], "replicas-2": [[own]], "memory": 10**9}})
    section = module.measure_rounds(quick=True)
    assert [str(check).partition(":")[0] for check in section.checks] == verdicts * 2
    ratio = (9.0 + covert) / 10.0
    assert section.ratios == {
        f"stock to covert round, 1e5, {server}": pytest.approx(1.0 / ratio)
        for server in ("FedAvg", "built-in")
    }
    assert section.rows[0][:3] == ("1e5", "20", "FedAvg")
    assert f"{ratio:.3f}" in section.rows[0][5]


@pytest.mark.parametrize(("memory", "largest"), [(20e9, "1e8"), (19e9, "1e7")])
def test_rounds_that_do_not_fit_in_memory_are_left_out(
    costs: Any, monkeypatch: pytest.MonkeyPatch, memory: float, largest: str
) -> None:
    rounds = [[make_round(9.0, other=1.0)]]
    module = costs({"pair": {"stock": rounds, "replicas-2": rounds, "memory": 1}})
    monkeypatch.setattr(module, "count_memory", lambda: memory)
    section = module.measure_rounds(quick=False)
    sizes = [("1e5", "FedAvg"), ("1e5", "built-in"), ("1e7", "FedAvg"), ("1e8", "FedAvg")]
    measured = sizes if largest == "1e8" else sizes[:-1]
    assert [(row[0], row[2]) for row in section.rows] == measured
    left_out = ("1e8 is left out: it needs 20 GB of memory",)
    assert section.notes == (() if largest == "1e8" else left_out)


@pytest.mark.parametrize(("own", "verdict"), [(0.4, "yes"), (0.6, "NO")])
def test_own_code_is_judged_by_its_share_of_the_wrapped_round(
    costs: Any, own: float, verdict: str
) -> None:
    stock = {"rounds": [make_round(9.0, wrapped=1.0)], "memory": 1}
    covert = {"rounds": [make_round(9.0, wrapped=1.0, reading=own, decoy=3.0)], "memory": 2}
    section = costs({"stock": stock, "covert": covert}).measure_overhead(quick=False)
    [check] = section.checks
    assert section.notes == (f"1e7: own code takes {own / 10.0:.1%} of the wrapped round",)
    assert str(check).startswith(f"{verdict}: 1e5: own code")
    assert section.ratios["wrapped round to own code, 1e5"] == pytest.approx(10.0 / own)


@pytest.mark.parametrize(("seconds", "memory", "met"), [(0.4, 9e8, True), (0.6, 1.1e9, False)])
def test_many_clients_are_judged(costs: Any, seconds: float, memory: float, met: bool) -> None:
    parts = {"reading": seconds, "checkpoint": seconds}
    module = costs({
        "stock": {"rounds": [make_round(9.0, wrapped=3.0)], "memory": 1},
        "covert": {"rounds": [make_round(9.0, wrapped=0.1, **parts)], "memory": memory},
    })  # fmt: skip
    section = module.measure_scale(quick=False)
    assert [check.is_met for check in section.checks] == [met, met]
    [large] = [row for row in section.rows if row[:2] == ("1e6", "1,000")]
    assert large[2] == ""  # a stock server would keep 4 GB of replies
    assert section.ratios["FedAvg to own work, 10,000 clients of 1e4"] == pytest.approx(
        1.5 / seconds
    )


MEASURED = """
import json, sys
sys.path.insert(0, sys.argv[2])
from measurement import run_apart
script, folder = sys.argv[2] + "/flower_process.py", sys.argv[1]
pair = run_apart(script, ("pair", "training", 1000, 3, 4, folder + "/pair"), limit=120)
alone = run_apart(
    script, ("covert", "echo", 1000, 3, 4, folder + "/alone", "--processor-time"), limit=120
)
print(json.dumps([pair, alone]))
"""


@pytest.mark.slow
def test_federations_are_measured(tmp_path: Path) -> None:
    done = run_python(MEASURED, tmp_path, ROOT / "benchmarks")
    assert done.returncode == 0, done.stderr
    pair, alone = json.loads(done.stdout)
    for kind in ("stock", "replicas-2"):
        [rounds] = pair[kind]
        assert len(rounds) == 2
        assert all(parts["clients"] > 0.0 and parts["other"] > 0.0 for parts in rounds)
    assert all(parts["reading"] > 0.0 for parts in alone["rounds"])
    assert 1e7 < alone["memory"] < 4e9
