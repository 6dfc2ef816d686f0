"""The page about all results: tables with the paper's values beside ours, pictures, differences.

It is made from result files alone, so the same files yield the same page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from covertfl.display.plots import save_figure
from covertfl.errors import InvalidInput
from covertfl.files.atomic import write_atomically
from paper.page.figures import PICTURES
from paper.page.learners import render_learners
from paper.page.markdown import StoredResult, table
from paper.page.searches import render_cost, render_spga, render_tracking
from paper.page.tables import (
    render_accuracy,
    render_fedsgd,
    render_main,
    render_mnist,
    render_random,
    render_readings,
    render_states,
)
from paper.page.theory import render_partial, render_theory

# Operations per image in training the paper's network: six for each weight that it passes.
IMAGE_FLOP = 6 * (24 * 24 * 32 * 25 + 20 * 20 * 32 * 800 + 6 * 6 * 64 * 800 + 576 * 256 + 2560)
PEAKS = {"H200": 989.5e12, "H100": 989.5e12}  # dense products of 16-bit floats
IMAGES = "images"
PREFIX = "reproduction-"

HEAD = """\
# The paper's tables and figures

Every table and figure of Jain and Krishnamurthy, "Controlling Federated Learning for Covertness",
computed by this package, with the paper's values beside ours. The page is made from the files in
`results/` by `python -m paper page --out results --page docs/reproduction.md`; each section
names the command that made its file. Sections are in the reading `sound` of the paper; figures in
the readings `paper-text` and `paper-code` follow their section, and the last section has the tables
of all readings side by side. D1 to D26 are entries of [deviations.md](deviations.md), which say how
the readings differ, F1 to F11 formulas of [paper_map.md](paper_map.md).

**One metric for every policy.** *Eavesdropper* is the expected accuracy of the final estimate,
equation (6) of the paper: the last query of the trajectory with the most queries after the last
round, a tie counting half. It has two levels, the learner's and the decoy's. Which of them a run
shows is luck; how probable each is follows exactly from policy and oracle. The value is therefore
the mean over seeds with both levels weighted by their exact probabilities. *Named* is the share of
runs whose final estimate is the true trajectory, *exact* the probability of that. *Peak* is the
largest accuracy that the estimate had after any round; for MNIST the best round is found on one
validation image in ten and its accuracy measured on all. *Learner* is the accuracy of the true
weights at the end, *exposure* the share of learning queries, *completion* the share of runs that
made all updates. All accuracies are on a balanced validation set that neither clients nor the
eavesdropper own.

Brackets are 95% intervals: Student's t over seeds for means, with the variances of both levels for
the eavesdropper; from 50 seeds on the percentile bootstrap for peak, exposure and the curves by
round, which have two levels, too; Wilson's for shares. "ours - paper" is bold where the paper's
value lies outside our interval by more than its rounding (0.005).

**Errors in the printed tables** (D23).

- The learner's columns of the two MNIST tables are exchanged: those under "greedy" belong to the
  optimal policy and vice versa. Here they are exchanged back.
- An eavesdropper's accuracy of 0.000 in the table for 50 clients (nine rows) is not an accuracy:
  the decoy branch of the code never ran. Here such cells are empty.
- Greedy rows have the accuracy of the last round in which learning had the majority, optimal rows
  that of the decoy; these are two metrics. The greedy value is repeated for all three shares of a
  size, because the eavesdropper's data has no influence on it.
- One value of the learner in the table for 50 clients, 0.638 in three rows, is far from the others
  (0.85 to 0.86) and looks like a failed run.
- The text names a difference of 51% at two good classes, share 99% and size 0.4 as the largest; the
  printed rows have 0.414 there with 20 clients (0.521 at size 0.1) and 0.566 with 50.
- The number of updates in the main experiment is 16 in the text and 20 in the appendix (D18), the
  accuracy 0.81 in the table and 0.85 in the text.
"""

TIMES = """
*Computing* is the time spent on an experiment's parts, including scores and averages, whenever they
were computed; parts that two experiments share count in both, and parts computed side by side each
count in full. *Total* is the time from the beginning of an experiment to its end, with reading data
and solving for policies, and without parts that had been computed before.

Without any stored parts, measured on 2026-11-17 on one H200 with 16 cores: both MNIST tables (1,080
runs) took 57 s (`python -m paper table-mnist-20 table-mnist-50 --device cuda`, the GPU kernels
compiled before), and `python -m paper all --device cuda` 156 s; the paper reports 23 hours for
1,040 runs on MNIST. Up to eight processes share a GPU, so that the computing of an experiment
includes the time in which it waited for others. `python -m paper all --quick` took 62 s on two
cores. The results on MNIST in the readings `paper-text` and `paper-code` were made with products in
TF32, those of the sound reading with products of 16-bit floats.
"""


# Results by reading, for the readings other than the sound one.
OtherResults = Mapping[str, Sequence[StoredResult]]


def draw_pictures(results: Sequence[StoredResult], folder: Path, prefix: str = "") -> list[Path]:
    """Draw the results that have a picture and return the files."""
    drawn = []
    for result in results:
        draw = PICTURES.get(result["experiment"])
        if draw is not None:
            path = folder / f"{prefix}{result['experiment']}.png"
            save_figure(draw(result), path)
            drawn.append(path)
    return drawn


def write_page(results: Sequence[StoredResult], page: Path, others: OtherResults) -> None:
    """Write the page, and its pictures to `images` beside it; `others` as in `render_page`."""
    folder = page.parent / IMAGES
    make_folder(folder)
    draw_pictures(results, folder, PREFIX)
    for reading, found in others.items():
        draw_pictures(list_shown(found, results), folder, f"{PREFIX}{reading}-")
    write_atomically(page, render_page(results, others))


def make_folder(folder: Path) -> None:
    """Create a folder if it does not exist; raise `InvalidInput` if that is impossible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be made: {error.strerror}") from error


def render_page(results: Sequence[StoredResult], others: OtherResults) -> str:
    """Render the page as Markdown; `others` are results in further readings, by reading."""
    parts = [HEAD, render_overview(results)]
    for result in results:
        parts.append(render_section(result))
        for reading, found in others.items():
            prefix = f"{IMAGES}/{PREFIX}{reading}-"
            heading = f"### {result['experiment']} in the reading {reading}"
            parts += [
                render_section(other, pictures=prefix, heading=heading)
                for other in list_shown(found, [result])
            ]
    readings = render_readings(results, others)
    return "\n".join([*parts, readings] if readings else parts)


def list_shown(
    found: Sequence[StoredResult], results: Sequence[StoredResult]
) -> list[StoredResult]:
    """Return the figures among results of another reading that follow a section of the page.

    Tables are compared in the last section instead.
    """
    names = {result["experiment"] for result in results}
    return [other for other in found if other["experiment"] in names and "rows" not in other]


def render_overview(results: Sequence[StoredResult]) -> str:
    """Render the table of when, where and how fast each result was made."""
    rows = [
        [
            f"[{result['experiment']}](#{result['experiment']})",
            result["paper_place"],
            result["made"]["date"],
            result["made"]["machine"],
            f"{result['made']['seconds']:,.0f} s",
            f"{result['made']['wall_seconds']:,.0f} s",
            "short form" if result["made"]["quick"] else "in full",
        ]
        for result in results
    ]
    columns = ["experiment", "in the paper", "made", "machine", "computing", "total", "form"]
    return "## Overview\n\n" + table(columns, rows, "llllrrl") + TIMES


def render_section(
    result: StoredResult, *, pictures: str = f"{IMAGES}/{PREFIX}", heading: str | None = None
) -> str:
    """Render one experiment; a picture's path is `pictures` followed by the experiment's name."""
    name, made = result["experiment"], result["made"]
    versions = ", ".join(f"{key} {value}" for key, value in made["versions"].items())
    text = (
        f"{heading or f'## {name}'}\n\n{result['title']} ({result['paper_place']}). Made on "
        f"{made['date']} by `{made['command']}` on {made['machine']}, {made['seconds']:,.0f} s of "
        f"computing, {made['wall_seconds']:,.0f} s in total; {versions}.\n\n"
    )
    if result.get("examples"):
        text += f"{describe_throughput(result)}\n\n"
    if made["quick"] and name in SHORT_FORMS:
        text += f"**Short form:** {SHORT_FORMS[name]}\n\n"
    text += SECTIONS[name](result)
    if name in PICTURES:
        text += f"\n![{result['title']}]({pictures}{name}.png)\n"
    return text


def describe_throughput(result: StoredResult) -> str:
    """Return the images trained on per second, and the share of a known card's peak speed."""
    made, examples = result["made"], result["examples"]
    rate = examples / made["seconds"] if made["seconds"] else 0.0
    text = f"Trained on {examples:,} images, {rate:,.0f} per second of computing"
    peaks = [peak for card, peak in PEAKS.items() if card in made["machine"]]
    if result["settings"]["model"] == "paper-cnn" and peaks:
        speed = rate * IMAGE_FLOP
        text += f": {speed / 1e12:.1f} TFLOP/s, {speed / peaks[0]:.1%} of the card's peak "
        text += "(16-bit floats)"
    return text + "."


SECTIONS: Mapping[str, Callable[[StoredResult], str]] = {
    "table-main": render_main,
    "figure-accuracy": render_accuracy,
    "figure-spga": render_spga,
    "figure-tracking": render_tracking,
    "figure-cost": render_cost,
    "theory": render_theory,
    "partial-oracle": render_partial,
    "table-mnist-20": render_mnist,
    "table-mnist-50": render_mnist,
    "table-fedsgd": render_fedsgd,
    "table-states": render_states,
    "random-policy": render_random,
    "mnist-learners": render_learners,
}

_SMALLER = (
    "a network of 6,000 weights instead of the paper's 228,010, a twelfth of the examples, {} of "
    "the rounds and updates, few seeds. It shows that everything runs and the direction of the "
    "effects; the levels are not comparable."
)

_SMALLER_TABLE = _SMALLER.format("half") + " Three of the 27 public sets."
SHORT_FORMS: Mapping[str, str] = {
    "table-mnist-20": _SMALLER_TABLE,
    "table-mnist-50": _SMALLER_TABLE,
    "table-fedsgd": _SMALLER.format("a quarter"),
    "table-states": _SMALLER.format("half"),
    "random-policy": _SMALLER.format("half"),
    "mnist-learners": _SMALLER.format("half") + " Two of the ten variants.",
}
