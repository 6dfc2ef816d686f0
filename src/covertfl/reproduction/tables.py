"""The sections of the page with tables of accuracies: the paper's values beside ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from scipy.stats import spearmanr

from covertfl.reproduction.figures import POLICY_NAMES, describe_public
from covertfl.reproduction.markdown import (
    format_difference,
    format_mean,
    format_printed,
    format_share,
    table,
)

Result = Mapping[str, Any]
SHORT_CAUSE = "In the short form the levels follow from the smaller network and the few examples."
OTHER_READING = "The causes named on this page apply to the reading `sound`."
COMPARED = (
    "eavesdropper",
    "paper",
    "ours - paper",
    "peak",
    "named",
    "learner",
    "paper",
    "ours - paper",
    "exposure",
    "completion",
)
COMPARED_SIDES = "r" * len(COMPARED)
MAIN_REMARK = (
    "The task is not the paper's: Wikipedia's comments instead of Civil Comments, a head on fixed "
    "vectors of 128 numbers instead of a fine-tuned BERT, about 1,470 instead of 5,443 examples "
    "per client. These set the learner's level. Scenario 1 is the same for any data: a decoy "
    "trained on one class predicts that class, which is right for half of a balanced set. A greedy "
    "run that finishes early leaves more than half of the rounds to the decoy; the estimate (6) is "
    "then the decoy for the greedy policy too, which lowers its mean and widens its interval. In "
    "early rounds the decoy is hardly trained, or the true trajectory leads for a while: *peak* is "
    "what the eavesdropper could have kept by stopping at the best moment."
)


def compare_row(row: Mapping[str, Any]) -> list[str]:
    """Return the cells of a row of accuracies."""
    paper = row["paper"] or {"eavesdropper": None, "learner": None}
    return [
        format_mean(row["eavesdropper"]),
        format_printed(paper["eavesdropper"]),
        format_difference(row["eavesdropper"], paper["eavesdropper"]),
        format_mean(row["worst"]),
        format_share(row["named"]),
        format_mean(row["learner"]),
        format_printed(paper["learner"]),
        format_difference(row["learner"], paper["learner"]),
        format_mean(row["exposure"], 2),
        format_share(row["completion"]),
    ]


def render_main(result: Result) -> str:
    """Render Table 1 of the paper, the main experiment."""
    rows = [
        [str(row["scenario"]), POLICY_NAMES[row["policy"]], row["decoy"], *compare_row(row)]
        for row in result["rows"]
    ]
    text = table(["scenario", "policy", "decoy", *COMPARED], rows, "lll" + COMPARED_SIDES)
    seen = {row["policy"]: row["expected"] for row in result["rows"]}
    exact = [
        [
            POLICY_NAMES[policy],
            f"{probs['completion']:.3f}",
            f"{probs['exposure']:.3f}",
            f"{probs['minority']:.3f}",
        ]
        for policy, probs in seen.items()
    ]
    settings = result["settings"]
    seeds = result["rows"][0]["seeds"]
    return (
        f"{settings['clients']} clients, N = {settings['rounds']}, M = {settings['updates']}, "
        f"{seeds} seeds, acceptance by {settings['acceptance']}, reading `{settings['reading']}`. "
        "The paper's optimal policy is the stationary one. All policies of a seed have the same "
        "oracle, clients and batches.\n\n"
        + text
        + f"\n{seeds} seeds are too few to estimate completion; these are the exact probabilities, "
        "with the first oracle state sampled from the stationary distribution (for the stationary "
        "policy, that of seed 0):\n\n"
        + table(
            ["policy", "makes all updates", "exposure", "learning queries a strict minority"],
            exact,
            "lrrr",
        )
        + add_remark(describe_main_differences(result), result, MAIN_REMARK)
    )


def add_remark(differences: str, result: Result, remark: str | Callable[[], str]) -> str:
    """Return differences and their causes, which hold for the full form in the sound reading."""
    if result["made"]["quick"]:
        cause = SHORT_CAUSE
    elif result["made"]["reading"] != "sound":
        cause = OTHER_READING
    else:
        cause = remark if isinstance(remark, str) else remark()
    return f"\n**Differences.** {differences} {cause}\n"


def describe_main_differences(result: Result) -> str:
    """Return by how much our cells differ from the paper's."""
    parts = []
    for row in result["rows"]:
        if row["paper"] is not None:
            parts.append(
                f"scenario {row['scenario']}, {row['policy']}: eavesdropper "
                f"{row['eavesdropper']['mean'] - row['paper']['eavesdropper']:+.3f}, learner "
                f"{row['learner']['mean'] - row['paper']['learner']:+.3f}"
            )
    return "; ".join(parts) + "."


def render_accuracy(result: Result) -> str:
    """Render Figure 2 of the paper, accuracies by round."""
    first = result["curves"][0]
    return (
        f"Mean over {first['seeds']} seeds with its 95% interval, by round, for both decoys and "
        "the runs of table-main. Crosses at the right are the paper's final values (Table 1).\n"
        + add_remark(
            "The paper's figure has the greedy and the stationary policy.",
            result,
            "Ours differ from it for the causes named under table-main. The shape is the same: "
            "with the greedy policy the eavesdropper's curve follows the learner's, with the "
            "others it stays with the decoy's once the decoy has the majority.",
        )
    )


def render_mnist(result: Result) -> str:
    """Render one of the two MNIST tables, Tables 3 and 4 of the paper."""
    settings, first = result["settings"], result["rows"][0]
    rows = [[describe_public(row), row["policy"], *compare_row(row)] for row in result["rows"]]
    text = table(["public set", "policy", *COMPARED], rows, "ll" + COMPARED_SIDES)
    return (
        f"{settings['clients']} clients, N = {settings['rounds']}, M = {settings['updates']}, "
        f"{first['seeds']} seeds, model {settings['model']}, acceptance by "
        f"{settings['acceptance']}, reading `{settings['reading']}`. A public set is described by "
        "its number of good classes, its size as a multiple of a client's, and the share of the "
        "good classes. The paper's columns of the learner are exchanged back (D23).\n\n"
        + text
        + add_remark(describe_mnist_differences(result), result, partial(_explain_mnist, result))
    )


def describe_mnist_differences(result: Result) -> str:
    """Return by how much a table differs from the paper's, by policy."""
    pairs: dict[str, list[float]] = {"greedy": [], "optimal": []}
    learner: dict[str, list[float]] = {"greedy": [], "optimal": []}
    for row in result["rows"]:
        if row["paper"]["eavesdropper"] is not None:
            pairs[row["policy"]].append(row["eavesdropper"]["mean"] - row["paper"]["eavesdropper"])
        learner[row["policy"]].append(row["learner"]["mean"] - row["paper"]["learner"])
    parts = [
        f"{policy}: eavesdropper {_mean(pairs[policy]):+.3f} on average "
        f"({min(pairs[policy]):+.3f} to {max(pairs[policy]):+.3f}), learner "
        f"{_mean(learner[policy]):+.3f}"
        for policy in pairs
    ]
    return "; ".join(parts) + "."


def _explain_mnist(result: Result) -> str:
    """Return what the rows share with the paper's, where they differ, and likely causes."""
    rows = [row for row in result["rows"] if row["policy"] == "optimal"]
    printed = [row for row in rows if row["paper"]["eavesdropper"] is not None]
    farthest = max(printed, key=lambda row: abs(_miss(row)))
    rare = [row for row in rows if (row["classes"], row["class_share"]) == (2, 0.99)]
    even = [row for row in rows if row["class_share"] is None and row["size"] == 1.0]
    printed_rare = ", ".join(format_printed(row["paper"]["eavesdropper"]) or "none" for row in rare)
    return (
        "With the optimal policy the rows are nearly in the paper's order (rank correlation "
        f"{_correlate_ranks(printed):.2f}): more good classes and a more even set help the "
        f"eavesdropper. The largest difference is {_miss(farthest):+.3f} at "
        f"{describe_public(farthest)}, and is one of size: with two good classes at 99% a larger "
        f"set does not help our decoy ({_list_means(rare)} at sizes 0.1, 0.4 and 1), whereas the "
        f"paper's reaches {printed_rare}. The other eight classes have so few images that the "
        "result depends on how they are sampled and how often each is used, which the paper does "
        "not state. The learner is better than the paper's; the code's smaller learning rate "
        "explains part of it (D24, last section of this page), and fewer examples or epochs per "
        "round may explain the rest. The paper's metric for the greedy policy is that of another "
        "round. An even public set of a client's size makes a decoy that is nearly as good as the "
        f"learner ({_list_means(even)}): an eavesdropper with such data need not listen."
    )


def _miss(row: Mapping[str, Any]) -> float:
    """Return the eavesdropper's accuracy, ours minus the paper's."""
    return float(row["eavesdropper"]["mean"] - row["paper"]["eavesdropper"])


def _list_means(rows: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{row['eavesdropper']['mean']:.3f}" for row in rows)


def _correlate_ranks(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return Spearman's rank correlation of the eavesdropper's accuracies with the paper's."""
    pairs = [(row["eavesdropper"]["mean"], row["paper"]["eavesdropper"]) for row in rows]
    return float(spearmanr(*zip(*pairs, strict=True)).statistic)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def render_pair(result: Result, remark: str) -> str:
    """Render a table of two policies."""
    settings, first = result["settings"], result["rows"][0]
    rows = [[row["policy"], *compare_row(row)] for row in result["rows"]]
    return (
        f"{settings['clients']} clients, N = {settings['rounds']}, M = {settings['updates']}, "
        f"{first['seeds']} seeds, {settings['algorithm']}, model {settings['model']}, acceptance "
        f"by {settings['acceptance']}, reading `{settings['reading']}`.\n\n"
        + table(["policy", *COMPARED], rows, "l" + COMPARED_SIDES)
        + add_remark(describe_pair_differences(result), result, remark)
    )


def describe_pair_differences(result: Result) -> str:
    """Return by how much the cells of a short table differ from the paper's."""
    parts = []
    for row in result["rows"]:
        cells = [
            f"{name} {row[name]['mean'] - row['paper'][name]:+.3f}"
            for name in ("eavesdropper", "learner")
            if row["paper"][name] is not None
        ]
        parts.append(f"{row['policy']}: {', '.join(cells)}")
    return "; ".join(parts) + "."


def render_fedsgd(result: Result) -> str:
    """Render the left half of Table 2 of the paper, FedSGD."""
    return render_pair(
        result,
        "The paper does not state the number of clients or the server's optimiser: here 20 clients "
        "and Adam at 1e-3, with which 75 updates suffice for a learner better than the paper's; "
        "the last section has the table at 1e-4. A decoy keeps no optimiser state, so each of its "
        "steps is a first step of Adam, which is the longest possible: on 300 examples the decoy, "
        "too, becomes better than the paper's.",
    )


def render_states(result: Result) -> str:
    """Render the right half of Table 2 of the paper, seven oracle states."""
    return render_pair(
        result,
        "Rounds are accepted with the printed success probabilities (D22). The learner's level "
        "follows from the learning rate; the last section has the table at 1e-4. With the printed "
        "probabilities the greedy policy often finishes before half of the rounds are over: the "
        f"true trajectory is named in {_format_named(result)} of its runs, and in the others the "
        "estimate (6) is the decoy, whose accuracy is low. *Peak* is close to the paper's metric, "
        "the last estimate while learning had the majority. The paper finds the eavesdropper of "
        "the greedy policy better than the learner (0.93 against 0.88) and explains it by more "
        "time to train. With one metric for both this cannot happen: the estimate is one of the "
        "learner's queries.",
    )


def _format_named(result: Result) -> str:
    (greedy,) = (row for row in result["rows"] if row["policy"] == "greedy")
    return f"{100.0 * greedy['named']['mean']:.0f}%"


def render_random(result: Result) -> str:
    """Render the comparison with a random policy, Appendix A of the paper."""
    difference = result["difference"]
    return render_pair(
        result,
        f"Optimal minus random, paired by seed: {format_mean(difference, 4)}; the paper has "
        "+0.120. The random policy uses every reply, including those of rounds with a quarter of "
        "the clients and few batches. Averaging over five clients does little harm here, because "
        "the data is divided evenly; a larger difference may need clients that differ more, or "
        "fewer examples per round.",
    )
