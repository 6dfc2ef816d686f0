"""Eavesdroppers that are clients: their own replies against the moves.

The replies of `make_line_means` pull the weight up, by 1 / (1 + exp(w)), and leave the bias alone.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.support.seen_queries import (
    Means,
    Vector,
    listen,
    make_line_means,
    make_queries,
    share_odds,
    sigmoid,
    vector,
)
from tests.support.small_federation import make_image, make_means, send_in_turn, train_truth

Sent = list[tuple[int, tuple[float, float]]]
ALONG: Sent = [(0, (0.0, 0.0)), (0, (1.0, 0.0))]
AGAINST: Sent = [(1, (0.5, 0.0)), (1, (-2.0, 0.0))]
ASLANT: Sent = [(1, (-1.0, 0.0)), (1, (0.0, 1.0))]
REPEATED: Sent = [(1, (2.0, 0.0)), (1, (2.0, 0.0)), (1, (3.0, 0.0)), (1, (3.0, 3.0))]
STILL: Sent = [(0, (0.0, 0.0)), (1, (5.0, 0.0)), (2, (9.0, 0.0))]
# Up, up and down: the third move is against the reply.
THEN_DOWN: Sent = [(0, (0.0, 0.0)), (0, (1.0, 0.0)), (0, (2.0, 0.0)), (0, (-3.0, 0.0))]
# Three moves up and three aside, whose replies still go up.
THREE: Sent = [(0, (float(n), 0.0)) for n in range(4)]
# Later moves, against the replies.
LATER: Sent = [*THREE, (1, (0.0, 0.0)), (0, (-5.0, 0.0)), (1, (1.0, 0.0)), (0, (-9.0, 0.0))]


@pytest.mark.parametrize("work", ["train", "gradient"])
@pytest.mark.parametrize(
    ("name", "sent", "attended", "cosines"),
    [
        ("alignment", ALONG + AGAINST, None, [1.0, -1.0]),
        ("alignment", ALONG + ASLANT, None, [1.0, math.sqrt(0.5)]),
        # The mean is over moves, and repeats count for nothing.
        ("alignment", ALONG + REPEATED, None, [1.0, 0.5]),
        ("alignment", STILL, None, [0.0, 0.0, 0.0]),
        ("alignment", [*STILL, (2, (9.5, 0.0))], None, [0.0, 0.0, 1.0]),
        # Asked in round 1 only, it compares the first move and no later one.
        ("alignment", [*THEN_DOWN, *AGAINST], {1}, [1.0, 0.0]),
        ("alignment", LATER, None, [1 / 5, 1.0]),
        # Only the first three moves count, of those it was asked before.
        ("first-moves", LATER, None, [1.0, 1.0]),
        ("first-moves", ALONG + ASLANT, None, [1.0, math.sqrt(0.5)]),
        ("first-moves", [*THEN_DOWN, *AGAINST], {3}, [-1.0, 0.0]),
        ("first-moves", THREE + ASLANT, set(), [0.0, 0.0]),
    ],
)
def test_cosines_with_its_replies_worked_by_hand(
    name: str, sent: Sent, attended: set[int] | None, cosines: list[float], work: str
) -> None:
    asked: list[int] = []
    means = make_line_means(work=work)  # type: ignore[arg-type]

    def reply(round_number: int, weights: Vector) -> object:
        asked.append(round_number)
        assert means.reply is not None
        return means.reply(round_number, weights)

    watched = replace(
        means,
        reply=reply,  # type: ignore[arg-type]
        attended=None if attended is None else frozenset(attended),
    )
    eavesdropper = listen(name, make_queries(sent), watched)
    assert eavesdropper.figures()["cosine"] == pytest.approx(cosines, abs=1e-5)
    assert eavesdropper.belief() == pytest.approx(share_odds(*(20.0 * np.array(cosines))), rel=1e-3)
    most, latest = max(cosines), dict(sent)
    held = [list(latest[k]) for k, cosine in enumerate(cosines) if cosine == most]
    if name == "alignment" and len(set(cosines)) == len(cosines):
        assert [weights.tolist() for weights in eavesdropper.estimate()] == held
    assert asked == [n for n in range(1, len(sent) + 1) if attended is None or n in attended]


def test_further_figures_of_moves() -> None:
    """Moves up, then up and aside; its replies go up, the second one less far."""
    sent = [(0, (0.0, 0.0)), (0, (1.0, 0.0)), (0, (2.0, 1.0))]
    figures = listen("alignment", make_queries(sent), make_line_means()).figures()
    expected = {
        "cosine": (1.0 + math.sqrt(0.5)) / 2.0,
        "cosine of the last layer": (1.0 + math.sqrt(0.5)) / 2.0,
        "cosine with the reply before": math.sqrt(0.5),
        "cosine of changes": 0.0,
    }
    found = {name: values[0] for name, values in figures.items()}
    assert found == pytest.approx(expected, abs=1e-6)
    sent = [(0, (0.0, 0.0)), (0, (1.0, 0.0)), (0, (3.0, 0.0))]  # farther, though replies grow short
    figures = listen("alignment", make_queries(sent), make_line_means()).figures()
    assert figures["cosine of changes"] == pytest.approx([-1.0])
    sent = [(0, (0.0, 0.0)), (0, (0.0, 1.0)), (0, (1.0, 1.0))]
    first = listen("first-moves", make_queries(sent), make_line_means()).figures()
    assert first["cosine of the first"] == pytest.approx([0.0], abs=1e-6)


def test_lengths_of_replies_worked_by_hand() -> None:
    """The trained weight is moved least; only replies that it gave itself count."""
    queries = make_queries([(0, (2.0, 0.0)), (1, (-1.0, 0.0))])
    eavesdropper = listen("reply-length", queries, make_line_means())
    logs = [math.log(sigmoid(-2.0)), math.log(sigmoid(1.0))]
    figures = eavesdropper.figures()
    assert figures["length"] == pytest.approx(logs, rel=1e-5)
    assert figures["bias"] == pytest.approx([0.0, 0.0], abs=1e-6)
    assert figures["last layer"] == pytest.approx([1.0, 1.0])
    assert eavesdropper.belief() == pytest.approx(share_odds(*(-20.0 * np.array(logs))), rel=1e-4)
    assert [weights.tolist() for weights in eavesdropper.estimate()] == [[2.0, 0.0]]
    means = replace(make_line_means(), attended=frozenset({1}))
    queries = make_queries([(0, (2.0, 0.0)), (0, (-5.0, 0.0)), (1, (3.0, 0.0))])
    lengths = listen("reply-length", queries, means).figures()["length"]
    assert lengths == pytest.approx([math.log(sigmoid(-2.0)), 0.0])


def test_replies_grow_shorter_where_it_is_trained() -> None:
    queries = make_queries([(0, (float(number), 0.0)) for number in range(6)])
    figures = listen("reply-length", queries, make_line_means()).figures()
    logs = [math.log(sigmoid(-float(number))) for number in range(6)]
    expected = (logs[4] + logs[5] - logs[0] - logs[1]) / 2.0
    assert figures["trend of length"] == pytest.approx([expected], rel=1e-4)


def test_replies_are_worked_out_once_for_all_clients() -> None:
    means, queries = make_line_means(), make_queries(ALONG + AGAINST)
    jobs: list[object] = []
    assert means.kernel is not None
    run = means.kernel.run
    means.kernel.run = lambda wanted: [jobs.extend(wanted), run(wanted)][1]  # type: ignore
    for name in ("alignment", "first-moves", "reply-length"):
        listen(name, queries, means)
    assert len(jobs) == len(queries)
    again = replace(means, seed=1)  # other means have a memory of their own
    listen("alignment", queries, again)
    assert len(jobs) == 2 * len(queries)


def test_what_does_not_fit_is_worked_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for one reply of two weights and its query: the second is computed each time."""
    monkeypatch.setattr("covertfl.eavesdroppers.eavesdropper.MOST_BYTES", 16)
    means, queries = make_line_means(), make_queries(ALONG)
    jobs: list[object] = []
    assert means.kernel is not None
    run = means.kernel.run
    means.kernel.run = lambda wanted: [jobs.extend(wanted), run(wanted)][1]  # type: ignore
    for name in ("alignment", "first-moves", "reply-length"):
        listen(name, queries, means)
    assert len(jobs) == 1 + 3


def test_the_part_of_a_mark_worked_by_hand() -> None:
    """Two moves with products 0.6 and 0.8; each length squared, 1, is spread over 4 weights."""
    sent = [
        (0, (0.0, 0.0, 0.0, 0.0)),
        (0, (1.0, 0.0, 0.0, 0.0)),
        (0, (1.0, 1.0, 0.0, 0.0)),
        (1, (9.0, 9.0, 9.0, 9.0)),
        (1, (9.0, 9.0, 9.0, 8.0)),
        (2, (5.0, 5.0, 5.0, 5.0)),
    ]
    means = Means(mark=vector(0.6, 0.8, 0.0, 0.0))
    eavesdropper = listen("mark", make_queries(sent), means)
    expected = 1.4 / math.sqrt(2 / 4)
    assert eavesdropper.figures()["pattern"] == pytest.approx([expected, 0.0, 0.0])
    assert eavesdropper.belief() == pytest.approx(share_odds(3.0 * expected, 0.0, 0.0))
    asked = replace(means, attended=frozenset({2, 4}))
    pattern = listen("mark", make_queries(sent), asked).figures()["pattern"]
    assert pattern == pytest.approx([0.8 / math.sqrt(1 / 4), 0.0, 0.0])


def test_a_marked_reply_is_found_in_the_truth() -> None:
    means = make_means()
    for seed in range(6):
        truth = train_truth(seed=seed, mark=means.mark)
        assert listen("mark", send_in_turn(truth, make_image(truth)), means).belief()[0] > 0.5


def test_where_flips_leave_the_pattern_an_image_ties() -> None:
    """A pattern in weights that are not the pivot's is in every image alike."""
    assert make_means().mark is not None
    mark = np.zeros_like(make_means().mark)
    mark[-1] = 1.0
    truth = train_truth(mark=mark)
    queries = send_in_turn(truth, make_image(truth))
    belief = listen("mark", queries, replace(make_means(), mark=mark)).belief()
    assert belief.tolist() == [0.5, 0.5]
