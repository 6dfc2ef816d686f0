"""Eavesdroppers that own nothing: what each concludes from queries made by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

import covertfl as cf
from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.listeners import smooth_states
from tests.support.seen_queries import (
    KnownScheme,
    Means,
    SeenQuery,
    Vector,
    follow_schedule,
    listen,
    make_line_means,
    make_queries,
    share_odds,
)
from tests.support.small_federation import (
    FLIPPED,
    INPUTS,
    LAYOUT,
    PIVOT,
    draw_weights,
    make_image,
    make_means,
    send_in_turn,
    train_decoy,
    train_truth,
)

# --- from which trajectory is queried when ----------------------------------------------------


@pytest.mark.parametrize(
    ("name", "order", "belief", "held"),
    [
        ("majority", [0], [1.0], [(0.0, 0.0)]),
        ("majority", [0, 1, 1], [1 / 3, 2 / 3], [(100.0, 1.0)]),
        ("majority", [0, 1, 1, 0], [0.5, 0.5], [(0.0, 1.0), (100.0, 1.0)]),
        ("majority", [0, 1, 1, 0, 0], [0.6, 0.4], [(0.0, 2.0)]),
        ("majority", [0, 1, 2, 2, 0, 2], [2 / 6, 1 / 6, 3 / 6], [(200.0, 2.0)]),
        ("majority", [0, 1, 2, 2, 0], [0.4, 0.2, 0.4], [(0.0, 1.0), (200.0, 1.0)]),
        ("minority", [0, 0, 0], [1.0], [(0.0, 2.0)]),
        ("minority", [0, 1, 1], [2 / 3, 1 / 3], [(0.0, 0.0)]),
        ("minority", [0, 1, 1, 0], [0.5, 0.5], [(0.0, 1.0), (100.0, 1.0)]),
        # Of six queries 4, 5 and 3 were not of the trajectory.
        ("minority", [0, 1, 2, 2, 0, 2], [4 / 12, 5 / 12, 3 / 12], [(100.0, 0.0)]),
        ("minority", [0, 1, 2, 0], [2 / 8, 3 / 8, 3 / 8], [(100.0, 0.0), (200.0, 0.0)]),
        ("change-point", [0, 0, 0], [1.0], [(0.0, 2.0)]),
        # (1) then (0): means 2/3 and 1/3, variances 1/18 each, so the score is 1.
        ("change-point", [0, 1], [0.841344746, 0.158655254], [(0.0, 0.0)]),
        # A schedule that reads the same backwards has no direction.
        ("change-point", [0, 1, 1, 0], [0.5, 0.5], [(0.0, 1.0), (100.0, 1.0)]),
    ],
)
def test_schedules_worked_by_hand(
    name: str, order: list[int], belief: list[float], held: list[tuple[float, float]]
) -> None:
    eavesdropper = listen(name, follow_schedule(order))
    assert eavesdropper.belief() == pytest.approx(belief, abs=1e-9)
    assert [tuple(weights.tolist()) for weights in eavesdropper.estimate()] == held


def literal_fall(queried: Sequence[bool]) -> float:
    """Sum over change points, with integrals of p^hits (1 - p)^misses as factorials."""
    weights, falls = [], []
    for change in range(1, len(queried)):
        sides, weight = [], 1.0
        for side in (queried[:change], queried[change:]):
            hits, size = sum(side), len(side)
            misses = size - hits
            weight *= math.factorial(hits) * math.factorial(misses) / math.factorial(size + 1)
            mean = (hits + 1) / (size + 2)
            sides.append((mean, mean * (1.0 - mean) / (size + 3)))
        (first, var1), (second, var2) = sides
        score = (first - second) / math.sqrt(var1 + var2)
        weights.append(weight)
        falls.append(0.5 * (1.0 + math.erf(score / math.sqrt(2.0))))
    return sum(w * f for w, f in zip(weights, falls, strict=True)) / sum(weights)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=20))
def test_change_points_against_a_literal_sum(rest: list[int]) -> None:
    """Of two trajectories one falls as the other rises; of three, each has its own evidence."""
    labels = [0, *rest]
    names = list(dict.fromkeys(labels))
    order = [names.index(label) for label in labels]
    belief = listen("change-point", follow_schedule(order)).belief()
    scores = [literal_fall([seen == k for seen in order]) for k in range(len(names))]
    assert belief == pytest.approx(np.array(scores) / sum(scores))
    if len(names) == 2:
        assert sum(scores) == pytest.approx(1.0)


# --- from how the weights move ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sent", "belief", "held"),
    [
        ("early-stop", [(0, 1.0), (0, 1.0)], [1.0], [1.0]),
        # 0 moved last in round 2, 1 in round 5; the repeat in round 4 is no movement.
        ("early-stop", [(0, 1.0), (0, 2.0), (1, 9.0), (0, 2.0), (1, 8.0)], [1.0, 0.0], [2.0]),
        # A trajectory's first query counts as movement; 1 repeats it for ever.
        ("early-stop", [(0, 1.0), (1, 9.0), (0, 2.0), (1, 9.0), (1, 9.0)], [0.0, 1.0], [9.0]),
        # Three: 0 in round 4, 1 in round 2, 2 in round 5.
        ("early-stop", [(0, 1.0), (1, 5.0), (2, 9.0), (0, 2.0), (2, 8.0)], [0, 1, 0], [5.0]),
        ("repeat", [(0, 1.0)], [1.0], [1.0]),
        ("repeat", [(0, 1.0), (0, 1.0)], [1.0], [1.0]),
        ("repeat", [(0, 1.0), (1, 9.0), (0, 2.0), (1, 8.0)], [0.5, 0.5], [2.0, 8.0]),
        # 0 repeats in rounds 3 and 4 with a query of 1 between; 1 repeats in round 6.
        (
            "repeat",
            [(0, 1.0), (1, 9.0), (0, 1.0), (0, 1.0), (1, 8.0), (1, 8.0), (0, 2.0)],
            [2 / 3, 1 / 3],
            [2.0],
        ),
        # What returns after a move is no repeat of the last query.
        ("repeat", [(0, 1.0), (1, 9.0), (0, 2.0), (0, 1.0), (1, 9.0)], [0.0, 1.0], [9.0]),
        (
            "repeat",
            [(0, 1.0), (1, 5.0), (2, 9.0), (2, 9.0), (1, 5.0), (0, 2.0)],
            [0, 0.5, 0.5],
            [5.0, 9.0],
        ),
    ],
)
def test_moves_and_repeats_worked_by_hand(
    name: str, sent: list[tuple[int, float]], belief: list[float], held: list[float]
) -> None:
    eavesdropper = listen(name, make_queries((number, (value,)) for number, value in sent))
    assert eavesdropper.belief() == pytest.approx(belief, abs=1e-15)
    assert [float(weights[0]) for weights in eavesdropper.estimate()] == held


STRAIGHT = [(0, (0.0, 0.0)), (0, (1.0, 0.0)), (0, (2.0, 0.0))]
# A step of 1 to the right and one of 2 upwards: cosine 0, lengths differ by a factor of 2.
BENT = [(1, (50.0, 0.0)), (1, (51.0, 0.0)), (1, (51.0, 2.0))]
BACK = [(2, (0.0, 90.0)), (2, (0.0, 91.0)), (2, (0.0, 90.0))]


@pytest.mark.parametrize(
    ("sent", "scores", "held"),
    [
        (STRAIGHT + BENT, [10.0, -5.0 * math.log(2.0)], [[2.0, 0.0]]),
        (STRAIGHT + BENT + BACK, [10.0, -5.0 * math.log(2.0), -10.0], [[2.0, 0.0]]),
        # A query between two steps that did not move is no step: smooth against nothing known.
        ([*STRAIGHT[:2], STRAIGHT[1], STRAIGHT[1], STRAIGHT[2], BENT[0]], [10.0, 0.0], None),
        # Nothing is known before two steps.
        ([STRAIGHT[0], BENT[0], STRAIGHT[1], BENT[1]], [0.0, 0.0], [[1.0, 0.0], [51.0, 0.0]]),
    ],
)
def test_the_smoothness_of_steps_worked_by_hand(
    sent: list[tuple[int, tuple[float, float]]], scores: list[float], held: list[list[float]] | None
) -> None:
    """The mean cosine of steps less half the change of log length, with odds of 10."""
    eavesdropper = listen("step-shape", make_queries(sent))
    assert eavesdropper.belief() == pytest.approx(share_odds(*scores), rel=1e-6)
    assert held is None or [weights.tolist() for weights in eavesdropper.estimate()] == held


def test_figures_of_steps_worked_by_hand() -> None:
    """Lengths 1, 1, 2, 4, 4, 4 along one line, then none; the other trajectory never moves."""
    places = np.cumsum([0.0, 1.0, 1.0, 2.0, -4.0, 4.0, 4.0])
    sent = [(0, (place, 0.0)) for place in places] + [(1, (70.0, 0.0))]
    logs = np.log([1.0, 1.0, 2.0, 4.0, 4.0, 4.0])
    found = listen("step-shape", make_queries(sent)).figures()
    expected = {
        "length": logs.mean(),
        "length at first": logs[:3].mean(),
        "deviation of length": logs.std(),
        "change of length": 2.0 * math.log(2.0) / 5.0,
        "trend of length": logs[-2:].mean() - logs[:2].mean(),
        "cosine": (1 + 1 - 1 - 1 + 1) / 5.0,
        "trend of cosine": 1.0 - 1.0,
        "cosine with the step before": (1 - 1 + 1 - 1) / 4.0,
        "length of the way": math.log(8.0),
    }
    assert {name: values[0] for name, values in found.items()} == pytest.approx(expected)
    assert all(values[1] == 0.0 for values in found.values())


def test_shares_of_the_last_layer_worked_by_hand() -> None:
    """Two trajectories move by 3 in one first weight and by 4, or 1, in the last bias."""
    first = draw_weights(0) * 0.0
    ways = []
    for bias in (4.0, 1.0):
        then = first.copy()
        then[0], then[-1] = 3.0, bias
        ways.append([first, then])
    eavesdropper = listen("last-layer", send_in_turn(*ways), make_means())
    figures = eavesdropper.figures()
    assert np.exp(figures["share"]) == pytest.approx([16.0 / 25.0, 1.0 / 10.0])
    assert figures["bias"] == pytest.approx([0.8, 1.0 / math.sqrt(10.0)])
    assert np.exp(figures["length"]) == pytest.approx([4.0, 1.0])
    odds = -10.0 * np.log([16.0 / 25.0, 0.1])
    assert eavesdropper.belief() == pytest.approx(share_odds(*odds))


def test_the_last_layer_has_weights_and_bias() -> None:
    """Its weights move by 3 and its bias by 4, the bias before it by 12; without layers, a tie."""
    first = draw_weights(0) * 0.0
    then = first.copy()
    then[-2], then[-1], then[INPUTS * 8] = 3.0, 4.0, 12.0
    figures = listen("last-layer", send_in_turn([first, then]), make_means()).figures()
    assert np.exp(figures["share"]) == pytest.approx([25.0 / 169.0])
    assert np.exp(figures["length"]) == pytest.approx([5.0])
    sent = [(0, (0.0, 0.0)), (1, (5.0, 0.0)), (0, (0.0, 1.0)), (1, (7.0, 1.0))]
    belief = listen("last-layer", make_queries(sent), make_line_means()).belief()
    assert belief.tolist() == [0.5, 0.5]


def test_moves_by_a_few_units_in_the_last_place_are_counted() -> None:
    unit = 2.0**-23  # of 32-bit numbers in [1, 2)
    sent = [
        (0, (1.0, -1.5, 1.5, 1.0)),
        (1, (1.0, 9.0, 9.0, 1.0)),
        (0, (1.0 + 2 * unit, -1.5 - 4 * unit, 1.5 + 5 * unit, 1.0)),
        (1, (1.0, 9.0, 9.5, 1.1)),
    ]
    eavesdropper = listen("rounding", make_queries(sent))
    figures = eavesdropper.figures()
    assert figures["rounding"].tolist() == [0.5, 0.0]
    assert figures["still"].tolist() == [0.25, 0.5]
    assert eavesdropper.belief() == pytest.approx(share_odds(100.0, 0.0))


def test_the_mean_of_equal_replies_moves_by_rounding() -> None:
    """Weights that no client has changed, averaged over clients, against weights left alone."""
    first = np.random.default_rng(0).standard_normal(400).astype(np.float32)
    shares = np.full((7, 1), 1 / 7, dtype=np.float32)
    averaged, left = np.add.reduce(shares * first, axis=0, dtype=np.float32), first.copy()
    averaged[:10], left[:10] = first[:10] + 0.1, first[:10] + 0.1
    sent = [(0, first), (1, 5.0 * first), (0, averaged), (1, 5.0 * left)]
    queries = make_queries((number, weights.tolist()) for number, weights in sent)
    assert listen("rounding", queries).belief()[0] > 0.99


# --- from the axes of the public map ----------------------------------------------------------


def move_columns(amounts: dict[int, float]) -> list[Vector]:
    """Weights before and after a move of some columns of the pivot."""
    first = draw_weights(0) * 0.0
    parts = {name: part.copy() for name, part in LAYOUT.split(first).items()}
    for axis, amount in amounts.items():
        parts[PIVOT][:, axis] = amount
    return [first, LAYOUT.join(parts)]


def test_the_centre_of_energy_worked_by_hand() -> None:
    """Energies of 1 and 4 on axes 1 and 2, against all on axis 4; ranks count from 1, in logs."""
    ways = [move_columns({0: 1.0, 1: -2.0}), move_columns({3: 1.0})]
    eavesdropper = listen("map-spectrum", send_in_turn(*ways), make_means())
    figures = eavesdropper.figures()
    centres = [0.8 * math.log(2.0), math.log(4.0)]
    assert figures["centre"] == pytest.approx(centres)
    assert figures["centre of the way"] == pytest.approx(centres)
    entropy = -0.2 * math.log(0.2) - 0.8 * math.log(0.8)
    assert figures["evenness"] == pytest.approx([entropy / math.log(INPUTS), 0.0])
    assert eavesdropper.belief() == pytest.approx(share_odds(*(-20.0 * np.array(centres))))


def test_axes_are_those_of_the_map() -> None:
    """With the columns of the map reversed, a move of the last input is one of the first axis."""
    means = replace(make_means(), axes=np.eye(INPUTS)[:, ::-1])
    ways = [move_columns({INPUTS - 1: 1.0}), move_columns({0: 1.0})]
    figures = listen("map-spectrum", send_in_turn(*ways), means).figures()
    assert figures["centre"] == pytest.approx([0.0, math.log(INPUTS)])


def test_a_pivot_that_does_not_move_ties() -> None:
    first = draw_weights(0)
    then = first.copy()
    then[-1] += 1.0
    queries = send_in_turn([first, then], [2 * first, 2 * then])
    assert listen("map-spectrum", queries, make_means()).belief().tolist() == [0.5, 0.5]


def test_a_permutation_of_the_inputs_gives_an_image_away() -> None:
    truth = train_truth()
    for seed in range(1, 6):
        order, image = np.random.default_rng(seed).permutation(INPUTS), []
        for weights in truth:
            parts = dict(LAYOUT.split(weights))
            image.append(LAYOUT.join({**parts, PIVOT: parts[PIVOT][:, order]}))
        belief = listen("map-spectrum", send_in_turn(truth, image), make_means()).belief()
        assert belief[0] > 0.5


# --- from two runs ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "others", [np.array([-1, 1, -1, -1, 1, 1]), FLIPPED], ids=["new flips", "the same flips"]
)
def test_only_new_flips_in_each_run_give_the_truth_away(others: FloatArray) -> None:
    run = train_truth(seed=50)
    means = replace(make_means(), other_run=send_in_turn(make_image(run, others), run))
    for seed in range(4):
        truth = train_truth(seed=seed)
        belief = listen("two-runs", send_in_turn(truth, make_image(truth)), means).belief()
        assert belief.tolist() == [0.5, 0.5] if others is FLIPPED else belief[0] > 0.5


def test_the_likeness_of_two_runs_worked_by_hand() -> None:
    """One unit that is always active: the effect of an input is the product of its weights."""

    def learn(*effects: float) -> list[Vector]:
        ways = []
        for row in (np.zeros(INPUTS), np.array(effects)):
            parts = {name: part * 0.0 for name, part in LAYOUT.split(draw_weights(0)).items()}
            parts[PIVOT][0], parts["0.bias"][0], parts["1.weight"][0, 0] = row, 100.0, -2.0
            ways.append(LAYOUT.join(parts))
        return ways

    other = send_in_turn(learn(0, 0, 0, 0, 0, 9), learn(3, 4, 0, 0, 0, 0))
    queries = send_in_turn(learn(-1, 0, 0, 0, 0, 0), learn(0, 5, 0, 0, 0, 0))
    eavesdropper = listen("two-runs", queries, replace(make_means(), other_run=other))
    assert eavesdropper.figures()["likeness"] == pytest.approx([0.0, 0.8], rel=1e-5, abs=1e-6)
    assert eavesdropper.belief() == pytest.approx(share_odds(0.0, 16.0), rel=1e-4)
    alone = replace(make_means(), other_run=[])
    queries = send_in_turn(train_truth(), train_decoy())
    assert listen("two-runs", queries, alone).belief().tolist() == [0.5, 0.5]


# --- from the rounds in which few clients took part -------------------------------------------

MAIN = cf.load_problem("sound/main")
ORACLE = replace(
    MAIN.oracle,
    transition=np.array([[0.8, 0.2, 0.0], [0.3, 0.5, 0.2], [0.0, 0.2, 0.8]]),
    success=np.array([0.1, 0.43, 0.95]),
)
CLIENTS = np.array([4, 8, 20])
TRUE = 1


def know_scheme(*, is_symmetric: bool = True) -> Means:
    problem = replace(MAIN, oracle=ORACLE)
    policy = cf.solve(problem).policy
    return Means(scheme=KnownScheme(problem, policy, is_symmetric=is_symmetric))


KNOWING = know_scheme()


def make_run(seed: int, *, levelled: bool) -> list[SeenQuery]:
    """Return a run of two trajectories, the second true; unless levelled, moves have noise.

    The squared length of a move is 1 plus 20 over the clients of its accepted round.
    """
    generator = np.random.default_rng(seed)
    state, place, sent = 0, 0.0, []
    order, clients = generator.permutation(2).tolist(), 0
    for _ in range(150):
        sent.append((order[0], (100.0 * order[0], place)))
        if generator.random() < ORACLE.success[state]:
            accepted = order.pop(0)
            clients = CLIENTS[state] if accepted == TRUE else clients
        if not order:
            order = generator.permutation(2).tolist()
            few = 10.0 if levelled else clients
            place += math.sqrt(1.0 + 20.0 / few) * math.exp(0.1 * generator.standard_normal())
        state = int(generator.choice(3, p=ORACLE.transition[state]))
    first = sent[0][0]  # trajectories are numbered as they first appear
    return make_queries([(int(number != first), weights) for number, weights in sent])


def name_truth(seed: int, *, levelled: bool) -> float:
    """Return 1 if the truth is named, 0 if not, 1/2 if the trajectories tie."""
    queries = make_run(seed, levelled=levelled)
    true = int(queries[0].weights[0] == 0.0)
    eavesdropper = listen("attendance", queries, KNOWING)
    belief, figures = eavesdropper.belief(), eavesdropper.figures()
    moves = max(sum(bool(q.moved) for q in queries if q.trajectory == k) for k in range(2))
    falls = np.minimum(figures["correlation"], 0.0)
    assert belief == pytest.approx(share_odds(*(-0.5 * moves * np.log(1.0 - falls**2))))
    assert np.all(figures["correlation"] * figures["slope"] >= 0.0)
    return 0.5 + 0.5 * float(np.sign(belief[true] - belief[1 - true]))


def test_states_are_those_of_an_enumeration() -> None:
    """The posterior of the state of each round as a sum over all sequences of states."""
    accepted, first = np.array([False, True, True, False, False, True]), np.array([0.5, 0.3, 0.2])
    total = np.zeros((len(accepted), 3))
    for path in itertools.product(range(3), repeat=len(accepted)):
        prob = first[path[0]]
        for before, after in itertools.pairwise(path):
            prob *= ORACLE.transition[before, after]
        for state, is_accepted in zip(path, accepted, strict=True):
            prob *= ORACLE.success[state] if is_accepted else 1.0 - ORACLE.success[state]
        total[np.arange(len(path)), path] += prob
    found = smooth_states(ORACLE, first, accepted)
    assert found == pytest.approx(total / total.sum(axis=1, keepdims=True), abs=1e-12)


def test_lengths_that_depend_on_the_state_name_the_truth() -> None:
    assert np.mean([name_truth(seed, levelled=False) for seed in range(40)]) >= 0.8
    assert 0.3 <= np.mean([name_truth(seed, levelled=True) for seed in range(40)]) <= 0.7


def test_equal_lengths_and_other_schedules_are_no_evidence() -> None:
    generator = np.random.default_rng(0)
    order = [number for _ in range(20) for number in generator.permutation(2).tolist()]
    eavesdropper = listen("attendance", follow_schedule(order), KNOWING)
    assert eavesdropper.belief().tolist() == [0.5, 0.5]
    assert all(set(values) == {0.0} for values in eavesdropper.figures().values())
    other = listen("attendance", make_run(0, levelled=False), know_scheme(is_symmetric=False))
    assert other.belief().tolist() == [0.5, 0.5]
