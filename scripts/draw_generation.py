"""Draw generations of exchangeable runs with K = 2 and with K = 4, for docs/exchangeable.md.

The rounds are an example: acceptances are drawn once and are the same for both panels, and the
order of the slots is drawn as a run draws it.

    python scripts/draw_generation.py [-o docs/images/generation.png]
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROOT = Path(__file__).resolve().parent.parent
SEED, ACCEPTED = 5, 0.6
GENERATIONS = {2: 4, 4: 2}  # by number of trajectories: the same number of accepted rounds
# Okabe and Ito's palette, which readers with colour vision deficiencies can tell apart.
BLUE, VERMILLION, GREEN, GREY, BAND = "#0072B2", "#D55E00", "#009E73", "#999999", "#F0F0F0"
MARKS = (
    (True, "o", BLUE, "accepted"),
    (False, "x", VERMILLION, "failed: the same query is sent again"),
)


@dataclass(frozen=True)
class DrawnRound:
    """A round: its number from 1, the slot that is queried, its generation, the acceptance."""

    number: int
    slot: int
    generation: int
    is_accepted: bool


def draw_rounds(trajectories: int) -> list[DrawnRound]:
    """Draw the rounds of the first generations."""
    accepting, ordering = np.random.default_rng(SEED), np.random.default_rng(SEED + trajectories)
    rounds: list[DrawnRound] = []
    for generation in range(GENERATIONS[trajectories]):
        for slot in ordering.permutation(trajectories).tolist():
            is_accepted = False
            while not is_accepted:
                is_accepted = bool(accepting.random() < ACCEPTED)
                rounds.append(DrawnRound(len(rounds) + 1, slot, generation, is_accepted))
    return rounds


def draw_panel(axes: Axes, trajectories: int) -> None:
    """Draw the rounds of K trajectories, one row for each slot."""
    rounds = draw_rounds(trajectories)
    numbers = range(GENERATIONS[trajectories])
    ends = [max(each.number for each in rounds if each.generation == n) + 0.5 for n in numbers]
    for number, begin, end in zip(numbers, [0.5, *ends[:-1]], ends, strict=True):
        axes.axvspan(begin, end, color=BAND if number % 2 == 0 else "white", zorder=0)
        text = f"generation {number + 1}"
        axes.text((begin + end) / 2, trajectories - 0.4, text, ha="center", fontsize=8)
    axes.hlines(range(trajectories), 0.5, ends[-1], color=GREY, linewidth=1, zorder=1)
    label = "all slots move together"
    axes.vlines(ends, -0.5, trajectories - 0.5, color=GREEN, linewidth=3, zorder=1, label=label)
    for is_accepted, marker, colour, label in MARKS:
        chosen = [each for each in rounds if each.is_accepted is is_accepted]
        places = [each.number for each in chosen], [each.slot for each in chosen]
        axes.scatter(
            *places, s=75, marker=marker, color=colour, linewidths=2, zorder=2, label=label
        )
    axes.set_yticks(range(trajectories), [f"slot {slot}" for slot in range(trajectories)])
    axes.set_ylim(-0.5, trajectories)
    axes.set_xlim(0.5, ends[-1] + 0.1)
    axes.set_xticks(range(1, len(rounds) + 1))
    axes.set_title(f"K = {trajectories}", loc="left", fontsize=10, fontweight="bold")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def draw_generations(path: Path) -> None:
    """Write the picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 4.8), dpi=160, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2.5, 4.5))
    draw_panel(above, 2)
    draw_panel(below, 4)
    below.set_xlabel("round")
    handles, labels = above.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=3, frameon=False, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    """Read the arguments and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = ROOT / "docs" / "images" / "generation.png"
    parser.add_argument("-o", "--output", type=Path, default=default)
    draw_generations(parser.parse_args().output)


if __name__ == "__main__":
    main()
