"""The sections of the page with tables of accuracies: the paper's values beside ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from scipy.stats import spearmanr

from covertfl.reproduction.figures import POLICY_NAMES, describe_public
from covertfl.reproduction.markdown import say, say_difference, say_paper, say_share, table

Result = Mapping[str, Any]
SHORT_CAUSE = "In the short form levels follow from the smaller network and the few examples."
OTHER_READING = "What is said of causes on the page is about the reading `sound`."
COMPARED = (
    "eavesdropper",
    "paper",
    "ours - paper",
    "worst",
    "named",
    "learner",
    "paper",
    "ours - paper",
    "exposure",
    "completion",
)
COMPARED_SIDES = "r" * len(COMPARED)


def compare_row(row: Mapping[str, Any]) -> list[str]:
    """The cells of a row of a table of accuracies."""
    paper = row["paper"] or {"eavesdropper": None, "learner": None}
    return [
        say(row["eavesdropper"]),
        say_paper(paper["eavesdropper"]),
        say_difference(row["eavesdropper"], paper["eavesdropper"]),
        say(row["worst"]),
        say_share(row["named"]),
        say(row["learner"]),
        say_paper(paper["learner"]),
        say_difference(row["learner"], paper["learner"]),
        say(row["exposure"], 2),
        say_share(row["completion"]),
    ]


def render_main(result: Result) -> str:
    """Table 1."""
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
        "The paper's optimal policy is the stationary one. All policies of a seed see the same "
        "oracle, clients and batches.\n\n"
        + text
        + f"\n{seeds} seeds say little about completion; the exact chances, first oracle state "
        "drawn from the stationary law (for the stationary policy that of seed 0):\n\n"
        + table(
            ["policy", "finishes all updates", "exposure", "learning queries a strict minority"],
            exact,
            "lrrr",
        )
        + add_remark(describe_main_differences(result), result, MAIN_REMARK)
    )


def add_remark(differences: str, result: Result, remark: str | Callable[[], str]) -> str:
    """Differences and what is said of them, which holds for the full form in the sound reading."""
    if result["made"]["quick"]:
        said = SHORT_CAUSE
    elif result["made"]["reading"] != "sound":
        said = OTHER_READING
    else:
        said = remark if isinstance(remark, str) else remark()
    return f"\n**Differences.** {differences} {said}\n"


def describe_main_differences(result: Result) -> str:
    """By how much the paper's cells differ."""
    parts = []
    for row in result["rows"]:
        if row["paper"] is not None:
            parts.append(
                f"scenario {row['scenario']}, {row['policy']}: eavesdropper "
                f"{row['eavesdropper']['mean'] - row['paper']['eavesdropper']:+.3f}, learner "
                f"{row['learner']['mean'] - row['paper']['learner']:+.3f}"
            )
    return "; ".join(parts) + "."


MAIN_REMARK = (
    "The task is not the paper's: Wikipedia's comments instead of Civil Comments, a head on fixed "
    "vectors of 128 numbers instead of a fine-tuned BERT, about 1,470 instead of 5,443 examples a "
    "client. The learner's level is set by these. Scenario 1 is the same in any data: a decoy that "
    "has seen one class names that class, which is right for half of a balanced set. A greedy run "
    "that finishes early leaves more than half of the rounds to the decoy; then (6) is the decoy "
    "for the greedy policy too, which pulls its mean down and widens its interval. In the early "
    "rounds the decoy is hardly trained, or the true trajectory leads for a while: *worst* is what "
    "the eavesdropper could have kept by stopping at the best moment."
)


def render_accuracy(result: Result) -> str:
    """Figure 2."""
    first = result["curves"][0]
    return (
        f"Mean over {first['seeds']} seeds and its 95% interval by round, with both decoys; the "
        "runs of table-main. Crosses at the right are the paper's final values (Table 1).\n"
        + add_remark(
            "The paper's figure has the greedy and the stationary policy.",
            result,
            "Ours differ from it in what is said under table-main; the shape is the same: with the "
            "greedy policy the eavesdropper's curve follows the learner's, with the others it "
            "stays with the decoy's once this has the majority.",
        )
    )


def render_mnist(result: Result) -> str:
    """The two MNIST tables."""
    settings, first = result["settings"], result["rows"][0]
    rows = [[describe_public(row), row["policy"], *compare_row(row)] for row in result["rows"]]
    text = table(["public set", "policy", *COMPARED], rows, "ll" + COMPARED_SIDES)
    return (
        f"{settings['clients']} clients, N = {settings['rounds']}, M = {settings['updates']}, "
        f"{first['seeds']} seeds, model {settings['model']}, acceptance by "
        f"{settings['acceptance']}, reading `{settings['reading']}`. A public set is given by its "
        "good classes, its size in clients' sizes and the share of the good classes. The "
        "learner's columns of the paper are "
        "put right (D23).\n\n"
        + text
        + add_remark(describe_mnist_differences(result), result, partial(_explain_mnist, result))
    )


def describe_mnist_differences(result: Result) -> str:
    """By how much the tables differ, and why."""
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
    """What the rows have in common with the paper's, where they do not, and likely causes."""
    rows = [row for row in result["rows"] if row["policy"] == "optimal"]
    printed = [row for row in rows if row["paper"]["eavesdropper"] is not None]
    farthest = max(printed, key=lambda row: abs(_miss(row)))
    rare = [row for row in rows if (row["classes"], row["class_share"]) == (2, 0.99)]
    even = [row for row in rows if row["class_share"] is None and row["size"] == 1.0]
    return (
        "With the optimal policy rows come nearly in the paper's order (rank correlation "
        f"{_correlate_ranks(printed):.2f}): more good classes and a more even set help the "
        f"eavesdropper. The largest miss is {_miss(farthest):+.3f} at {describe_public(farthest)}. "
        "There the size is the matter: with two good classes at 99% a larger set does not help "
        f"our decoy ({_list_means(rare)} at sizes 0.1, 0.4 and 1), the paper's gets "
        f"{', '.join(say_paper(row['paper']['eavesdropper']) or 'none' for row in rare)}; the "
        "other eight classes are so few images that how they are drawn and how often each is "
        "passed over decides, which the paper does not print. The learner is better than the "
        "paper's; a smaller learning rate (D24, last section of the page) explains a part of it, "
        "fewer examples or epochs a round may explain the rest. The paper's greedy metric is its "
        "own for another round. An even public set of a client's size makes a decoy that is "
        f"nearly as good as the learner ({_list_means(even)}): an eavesdropper with good data of "
        "its own needs nobody."
    )


def _miss(row: Mapping[str, Any]) -> float:
    """Ours less the paper's, of the eavesdropper."""
    return float(row["eavesdropper"]["mean"] - row["paper"]["eavesdropper"])


def _list_means(rows: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{row['eavesdropper']['mean']:.3f}" for row in rows)


def _correlate_ranks(rows: Sequence[Mapping[str, Any]]) -> float:
    """Spearman's rank correlation of the eavesdropper's accuracies with the paper's."""
    pairs = [(row["eavesdropper"]["mean"], row["paper"]["eavesdropper"]) for row in rows]
    return float(spearmanr(*zip(*pairs, strict=True)).statistic)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def render_pair(result: Result, remark: str) -> str:
    """A table of two policies."""
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
    """By how much the cells of a short table differ from the paper's."""
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
    """FedSGD."""
    return render_pair(
        result,
        "The number of clients and the server's optimiser are not printed: 20 clients and Adam "
        "at 1e-3 here, with which 75 updates are enough for a learner better than the paper's; the "
        "last section has the table at 1e-4. A decoy keeps no memory of its optimiser, so its "
        "steps are those that Adam makes first, as long as a step can be: on 300 examples it too "
        "gets farther than the paper's.",
    )


def render_states(result: Result) -> str:
    """Seven states."""
    return render_pair(
        result,
        "Rounds are accepted with the printed success chances (D22). The learner's level follows "
        "the learning rate: the last section has it at 1e-4. With the printed chances the greedy "
        "policy is often done before half of the rounds are over: the true trajectory is named in "
        f"{_say_named(result)} of its runs, and in the others the estimate (6) is the decoy, "
        "which is worth little. *Worst* is what the paper has in mind, the last estimate while "
        "learning had the majority. The paper explains the greedy policy's eavesdropper being "
        "better than the learner (0.93 against 0.88) by more time to train; with one metric for "
        "both it cannot be: the estimate is a query of the learner's.",
    )


def _say_named(result: Result) -> str:
    (greedy,) = (row for row in result["rows"] if row["policy"] == "greedy")
    return f"{100.0 * greedy['named']['mean']:.0f}%"


def render_random(result: Result) -> str:
    """The random policy."""
    difference = result["difference"]
    return render_pair(
        result,
        f"Optimal less random, paired by seed: {say(difference, 4)}; the paper has +0.120. The "
        "random policy uses every reply, also of rounds with a quarter of the clients and few "
        "batches. Here averaging over five clients does little harm on data that is divided "
        "evenly; a larger difference may need clients that differ more, or fewer examples a round.",
    )
