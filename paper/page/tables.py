"""The sections with tables of accuracies, the paper's beside ours, and of all readings of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paper.page.markdown import (
    POLICY_NAMES,
    StoredResult,
    describe_public,
    describe_seeds,
    format_difference,
    format_mean,
    format_printed,
    format_share,
    table,
)

SHORT_CAUSE = "In the short form the levels follow from the smaller network and the few examples."
OTHER_READING = "The causes named on this page apply to the reading `sound`."
OURS = ("paper", "ours - paper")
COMPARED = (
    *("eavesdropper", *OURS, "peak", "named", "exact", "learner", *OURS),
    *("exposure", "completion"),
)
COMPARED_SIDES = "r" * len(COMPARED)
MAIN_REMARK = (
    "The task is not the paper's: Wikipedia's comments instead of Civil Comments, a head on fixed "
    "vectors of 128 numbers instead of a fine-tuned BERT, about 1,470 instead of 5,443 examples "
    "per client. These set the learner's level. The paper's learner is rated on the mean over the "
    "clients' validation sets, which for clients that are alike is the same in expectation (D23). "
    "Scenario 1 is the same for any data: a decoy "
    "trained on one class predicts that class, which is right for half of a balanced set. A greedy "
    "run that finishes early leaves more than half of the rounds to the decoy; the estimate (6) is "
    "then the decoy for the greedy policy too, which lowers its mean. In "
    "early rounds the decoy is hardly trained, or the true trajectory leads for a while: *peak* is "
    "what the eavesdropper could have kept by stopping at the best moment."
)
READINGS_INTRODUCTION = (
    "The same tables in the other readings. Both accept rounds with the printed probabilities "
    "(D19; table-states has these in every reading). `paper-text` has the text's privacy costs, "
    "which rise with the oracle state (D2), and its learning rate of 1e-3; `paper-code` has the "
    "code's learning rate of 1e-4 (D24) and its transition matrices (D20; unchanged for "
    "table-states). A cell is ours minus the paper's: the mean over the rows that the paper has, "
    "and the range if there are several; it is empty where the table was not computed in that "
    "reading."
)
LOOKED_AT = ("learner", "eavesdropper")
# A learner's accuracy this close to the paper's counts as the same.
CLOSE = 0.02


def compare_row(row: Mapping[str, Any]) -> list[str]:
    """Return the cells of a row of accuracies."""
    paper = row["paper"] or {"eavesdropper": None, "learner": None}
    return [
        format_mean(row["eavesdropper"]),
        format_printed(paper["eavesdropper"]),
        format_difference(row["eavesdropper"], paper["eavesdropper"]),
        format_mean(row["worst"]),
        format_share(row["named"]),
        f"{100.0 * row['expected']['named']:.1f}%",
        format_mean(row["learner"]),
        format_printed(paper["learner"]),
        format_difference(row["learner"], paper["learner"]),
        format_mean(row["exposure"], 2),
        format_share(row["completion"]),
    ]


def render_main(result: StoredResult) -> str:
    """Render Table 1 of the paper, the main experiment."""
    rows = [
        [str(row["scenario"]), POLICY_NAMES[row["policy"]], row["decoy"], *compare_row(row)]
        for row in result["rows"]
    ]
    text = table(["scenario", "policy", "decoy", *COMPARED], rows, "lll" + COMPARED_SIDES)
    seen = {row["policy"]: row["expected"] for row in result["rows"]}
    columns = ("completion", "exposure", "minority", "named")
    exact = [
        [POLICY_NAMES[policy], *(f"{probs[column]:.3f}" for column in columns)]
        for policy, probs in seen.items()
    ]
    settings = result["settings"]
    printed = [row for row in result["rows"] if row["paper"]]
    named = {f"scenario {row['scenario']}, {row['policy']}": row for row in printed}
    return (
        f"{settings['clients']} clients, N = {settings['rounds']}, M = {settings['updates']}, "
        f"{describe_seeds(result)}, acceptance by {settings['acceptance']}, reading "
        f"`{settings['reading']}`. The paper's optimal policy is the stationary one. Seeds differ "
        "in everything: oracle, data, clients, batches and validation set. All policies, scenarios "
        "and decoys of a seed have the same of these, so that rows differ by what they name and "
        "not by luck, but are not independent of each other.\n\n"
        + text
        + "\nThe exact probabilities, with the first oracle state sampled from the stationary "
        "distribution (for the stationary policy, the mean over the policies that the searches of "
        "all seeds found):\n\n"
        + table(
            [
                *("policy", "makes all updates", "exposure", "learning queries a strict minority"),
                "true trajectory named",
            ],
            exact,
            "lrrrr",
        )
        + add_remark(describe_differences(named), result, MAIN_REMARK)
    )


def add_remark(differences: str, result: StoredResult, remark: str | Callable[[], str]) -> str:
    """Return differences and their causes, which hold for the full form in the sound reading."""
    if result["made"]["quick"]:
        cause = SHORT_CAUSE
    elif result["made"]["reading"] != "sound":
        cause = OTHER_READING
    else:
        cause = remark if isinstance(remark, str) else remark()
    return f"\n**Differences.** {f'{differences} {cause}'.strip()}\n"


def describe_differences(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return ours minus the paper's, by the name of a row, where the paper has a value."""
    parts = []
    for name, row in rows.items():
        cells = [
            f"{column} {row[column]['mean'] - row['paper'][column]:+.3f}"
            for column in ("eavesdropper", "learner")
            if row["paper"][column] is not None
        ]
        parts.append(f"{name}: {', '.join(cells)}")
    return "; ".join(parts) + "."


def render_accuracy(result: StoredResult) -> str:
    """Render Figure 3 of the paper, accuracies by round."""
    return (
        f"Mean over {describe_seeds(result)} with its 95% interval, by round, for both decoys and "
        "the runs of table-main. Crosses at the right are the paper's final values (Table 1).\n"
        + add_remark(
            "The paper's figure has the greedy and the stationary policy.",
            result,
            "Ours differ from it for the causes named under table-main. The shape is the same: "
            "with the greedy policy the eavesdropper's curve follows the learner's, with the "
            "others it stays with the decoy's once the decoy has the majority.",
        )
    )


def render_mnist(result: StoredResult) -> str:
    """Render one of the two MNIST tables, Tables 3 and 4 of the paper."""
    settings = result["settings"]
    rows = [[describe_public(row), row["policy"], *compare_row(row)] for row in result["rows"]]
    text = table(["public set", "policy", *COMPARED], rows, "ll" + COMPARED_SIDES)
    return (
        f"{settings['clients']} clients, N = {settings['rounds']}, M = {settings['updates']}, "
        f"{describe_seeds(result)}, model {settings['model']}, acceptance by "
        f"{settings['acceptance']}, reading `{settings['reading']}`. A public set is described by "
        "its number of good classes, its size as a multiple of a client's, and the share of the "
        "good classes. The paper's columns of the learner are exchanged back (D23).\n\n"
        + text
        + add_remark(describe_mnist_differences(result), result, lambda: _explain_mnist(result))
    )


def describe_mnist_differences(result: StoredResult) -> str:
    """Return by how much a table differs from the paper's, by policy."""
    parts = []
    for policy in ("greedy", "optimal"):
        found = find_differences(result, policy, "eavesdropper")
        learner = find_differences(result, policy, "learner")
        parts.append(
            f"{policy}: eavesdropper {sum(found) / len(found):+.3f} on average "
            f"({min(found):+.3f} to {max(found):+.3f}), learner {sum(learner) / len(learner):+.3f}"
        )
    return "; ".join(parts) + "."


def _explain_mnist(result: StoredResult) -> str:
    """Return what the rows share with the paper's, where they differ, and likely causes."""
    from scipy.stats import spearmanr  # takes long to load

    rows = [row for row in result["rows"] if row["policy"] == "optimal"]
    printed = [row for row in rows if row["paper"]["eavesdropper"] is not None]
    farthest = max(printed, key=lambda row: abs(_miss(row)))
    rare = [row for row in rows if (row["classes"], row["class_share"]) == (2, 0.99)]
    even = [row for row in rows if row["class_share"] is None and row["size"] == 1.0]
    ranks = spearmanr(
        [row["eavesdropper"]["mean"] for row in printed],
        [row["paper"]["eavesdropper"] for row in printed],
    )
    printed_rare = ", ".join(format_printed(row["paper"]["eavesdropper"]) or "none" for row in rare)
    return (
        "With the optimal policy the rows are nearly in the paper's order (rank correlation "
        f"{float(ranks.statistic):.2f}): more good classes and a more even set help the "
        f"eavesdropper. The largest difference is {_miss(farthest):+.3f} at "
        f"{describe_public(farthest)}, and is one of size: with two good classes at 99% a larger "
        f"set does not help our decoy ({_list_means(rare)} at sizes 0.1, 0.4 and 1), whereas the "
        f"paper's reaches {printed_rare}. The other eight classes have so few images that the "
        "result depends on how they are sampled and how often each is used, which the paper does "
        "not state. The learner is better than the paper's; the code's smaller learning rate "
        "explains part of it (D24, last section of this page), and mnist-learners tries other "
        "causes. The paper's metric for the greedy policy is that of another "
        "round. An even public set of a client's size makes a decoy that is nearly as good as the "
        f"learner ({_list_means(even)}): an eavesdropper with such data need not listen."
    )


def _miss(row: Mapping[str, Any]) -> float:
    """Return the eavesdropper's accuracy, ours minus the paper's."""
    return float(row["eavesdropper"]["mean"] - row["paper"]["eavesdropper"])


def _list_means(rows: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{row['eavesdropper']['mean']:.3f}" for row in rows)


def render_pair(result: StoredResult, remark: str) -> str:
    """Render a table of two policies."""
    settings = result["settings"]
    rows = [[row["policy"], *compare_row(row)] for row in result["rows"]]
    return (
        f"{settings['clients']} clients, N = {settings['rounds']}, M = {settings['updates']}, "
        f"{describe_seeds(result)}, {settings['algorithm']}, model {settings['model']}, acceptance "
        f"by {settings['acceptance']}, reading `{settings['reading']}`.\n\n"
        + table(["policy", *COMPARED], rows, "l" + COMPARED_SIDES)
        + add_remark(
            describe_differences({row["policy"]: row for row in result["rows"]}), result, remark
        )
    )


def render_fedsgd(result: StoredResult) -> str:
    """Render the left half of Table 2 of the paper, FedSGD."""
    return render_pair(
        result,
        "The paper does not state the number of clients or the server's optimizer: here 20 clients "
        "and Adam at 1e-3, with which 75 updates suffice for a learner better than the paper's; "
        "the last section has the table at 1e-4. A decoy keeps no optimizer state, so each of its "
        "steps is a first step of Adam, which is the longest possible: on 300 examples the decoy, "
        "too, becomes better than the paper's.",
    )


def render_states(result: StoredResult) -> str:
    """Render the right half of Table 2 of the paper, seven oracle states."""
    (named,) = (row["expected"]["named"] for row in result["rows"] if row["policy"] == "greedy")
    return render_pair(
        result,
        "Rounds are accepted with the printed success probabilities (D22). The learner's level "
        "follows from the learning rate; the last section has the table at 1e-4. With the printed "
        "probabilities the greedy policy often finishes before half of the rounds are over: the "
        f"true trajectory is named with probability {named:.2f}, and otherwise the estimate (6) is "
        "the decoy, whose accuracy is low. *Peak* is close to the paper's metric, "
        "the last estimate while learning had the majority. The paper finds the eavesdropper of "
        "the greedy policy better than the learner (0.93 against 0.88) and explains it by more "
        "time to train. With one metric for both this cannot happen: the estimate is one of the "
        "learner's queries.",
    )


def render_random(result: StoredResult) -> str:
    """Render the comparison with a random policy, Appendix A of the paper."""
    difference = format_mean(result["difference"], 4)
    return render_pair(
        result,
        f"Optimal minus random, paired by seed: {difference}; the paper has "
        "+0.120. The random policy uses every reply, including those of rounds with a quarter of "
        "the clients and few batches. Averaging over five clients does little harm here, because "
        "the data is divided evenly; mnist-learners has clients that differ.",
    )


def find_differences(result: StoredResult, policy: str, column: str) -> list[float]:
    """Return ours minus the paper's, in all rows of a policy that the paper has."""
    return [
        row[column]["mean"] - row["paper"][column]
        for row in result["rows"]
        if row["policy"] == policy and row["paper"] and row["paper"][column] is not None
    ]


def format_differences(differences: Sequence[float]) -> str:
    """Format the mean of differences, and the range of several."""
    if not differences:
        return ""
    mean = f"{sum(differences) / len(differences):+.3f}"
    if len(differences) == 1:
        return mean
    return f"{mean} ({min(differences):+.3f} to {max(differences):+.3f})"


def list_policies(result: StoredResult) -> list[str]:
    """Return the policies for which the paper has numbers."""
    return list(dict.fromkeys(row["policy"] for row in result["rows"] if row["paper"]))


def render_readings(
    sound: Sequence[StoredResult], others: Mapping[str, Sequence[StoredResult]]
) -> str:
    """Render the tables' differences from the paper in all readings; empty if there is one only."""
    tables = {
        reading: {result["experiment"]: result for result in found if "rows" in result}
        for reading, found in others.items()
    }
    tables = {reading: found for reading, found in tables.items() if found}
    compared = [
        (result, {reading: found.get(result["experiment"]) for reading, found in tables.items()})
        for result in sound
        if any(result["experiment"] in found for found in tables.values())
    ]
    if not compared:
        return ""
    columns = ["experiment", "policy", "rows"]
    columns += [f"{who}, {each}" for who in LOOKED_AT for each in ("sound", *tables)]
    rows = []
    for result, beside in compared:
        for policy in list_policies(result):
            cells = [
                "" if each is None else format_differences(find_differences(each, policy, who))
                for who in LOOKED_AT
                for each in (result, *beside.values())
            ]
            count = len(find_differences(result, policy, LOOKED_AT[0]))
            rows.append([result["experiment"], POLICY_NAMES[policy], str(count), *cells])
    made = [other for _, beside in compared for other in beside.values() if other is not None]
    code = [other for other in made if other["made"]["reading"] == "paper-code"]
    commands = ", ".join(f"`{other['made']['command']}`" for other in made)
    folders = " and ".join(f"`results/{reading}/`" for reading in tables)
    return (
        f"## In the other readings of the paper\n\n{READINGS_INTRODUCTION}\n\n"
        f"{table(columns, rows, 'llr' + 'r' * (len(columns) - 3))}\n"
        f"{_conclude(code)}Made by {commands}; the files are in {folders}.\n"
    )


def _conclude(results: Sequence[StoredResult]) -> str:
    """Return which tables have the paper's learner with the code's settings, and which do not."""
    largest = {
        result["experiment"]: max(
            abs(difference)
            for policy in list_policies(result)
            for difference in find_differences(result, policy, "learner")
        )
        for result in results
    }
    same = [name for name, difference in largest.items() if difference <= CLOSE]
    other = [name for name, difference in largest.items() if difference > CLOSE]
    text = ""
    if same:
        text += (
            f"In the reading `paper-code` the learner of {' and '.join(same)} is within "
            f"{max(largest[name] for name in same):.3f} of the paper's. In table-states only the "
            "learning rate differs, so the paper's table was probably made with the code's rate. "
        )
    if other:
        text += (
            f"In that reading the learner of {', '.join(other)} is not within {CLOSE} of the "
            "paper's, so something else must differ too. "
        )
    return text
