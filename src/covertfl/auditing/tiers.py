"""Eavesdroppers by tier, that is by what they have besides the queries, and the best of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from covertfl.auditing.threats import Threat, to_list
from covertfl.eavesdroppers.registry import find_class

# Share of runs named from which a number of fresh examples is enough.
ENOUGH = 0.9
# Every eavesdropper knows the scheme and sees the queries; what it has besides.
TIERS = {"A": "listener", "B": "public set", "C": "client", "D": "fresh data"}


@dataclass(frozen=True)
class Tier:
    """The eavesdroppers of one tier.

    Parameters
    ----------
    letter : key of `TIERS`
    threats : one for each eavesdropper
    """

    letter: str
    threats: tuple[Threat, ...]

    @property
    def title(self) -> str:
        """Return the tier's letter and what its eavesdroppers have."""
        return f"{self.letter} {TIERS[self.letter]}"

    @property
    def best(self) -> Threat | None:
        """Return the one that names the true model most often, None if nobody can be judged.

        Of a single run, it is the one that does so most often in simulated runs.
        """
        judged = [each for each in self.threats if each.is_judged and not each.is_base_line]
        return max(judged, key=_rank) if judged else None

    def describe(self) -> str:
        """Return who is the best and what it gets, in a sentence."""
        best = self.best
        if best is None:
            return f"{self.title}: {self._describe_beliefs()}."
        told = _choose_figures(best)
        if told is best and best.conviction is not None:
            right = best.conviction.judge("is right", "is wrong", "cannot choose")
            found = f"{right} in this run"
        else:
            runs = "simulated runs" if told is not best else "runs"
            found = f"names the true model in {told.format_share()} of {told.num_runs} {runs}"
        number = sum(not threat.is_base_line for threat in self.threats)
        who = f"the best of {number}, {best.name}," if number > 1 else best.name
        enough = f"  {self._describe_enough()}" if self.letter == "D" else ""
        return f"{self.title}: {who} {found}{_describe_accuracy(told)}.{enough}"

    def _describe_beliefs(self) -> str:
        """Return what is believed where nobody can be judged, or why nothing is."""
        if any(threat.names_true is not None for threat in self.threats):
            return "nobody can be judged: too few queries are on their right trajectory"
        listed = [each.conviction for each in self.threats if not each.is_base_line]
        found = [one for one in listed if one is not None]
        if not found:
            return "nobody can be judged: which trajectory is true is not in the public records"
        votes = Counter(one.favourites[0] for one in found if len(one.favourites) == 1)
        parts = [f"trajectory {key + 1} convinces {votes[key]}" for key in sorted(votes)]
        undecided = len(found) - votes.total()
        parts += [f"{undecided} cannot choose"] if undecided else []
        return f"of {len(found)} eavesdroppers, {', '.join(parts)}"

    def _describe_enough(self) -> str:
        """Return how many labelled examples suffice, and what they are worth without listening."""
        sizes = {
            int(getattr(find_class(threat.name), "number", 0)): _choose_figures(threat)
            for threat in self.threats
            if threat.is_judged and hasattr(find_class(threat.name), "number")
        }
        for number, threat in sorted(sizes.items()):
            if threat.names_true is not None and threat.names_true >= ENOUGH:
                alone = ""
                if threat.final_accuracy is not None and threat.gain is not None:
                    base = threat.final_accuracy - threat.gain
                    alone = f"; training alone on them gives {base:.3f}"
                return f"{number} labelled examples are enough to be right in 90% of runs{alone}."
        most = max(sizes, default=0)
        return f"{most} labelled examples are not enough to be right in 90% of runs."

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of `covertfl audit --json`."""
        best = self.best
        told = None if best is None else _choose_figures(best)
        return {
            "title": self.title,
            "best": None if best is None else best.name,
            "names_true": None if told is None else told.names_true,
            "interval": None if told is None else to_list(told.interval),
            "final_accuracy": None if told is None else told.final_accuracy,
            "gain": None if told is None else told.gain,
            "runs": None if told is None else told.num_runs,
            "verdict": self.describe(),
        }


def _choose_figures(threat: Threat) -> Threat:
    """Return the figures of simulated runs where there are any: one run says little."""
    simulated = threat.simulated
    return simulated if simulated is not None and simulated.is_judged else threat


def _rank(threat: Threat) -> tuple[float, float]:
    told = _choose_figures(threat)
    assert told.names_true is not None
    return told.names_true, told.final_accuracy or 0.0


def _describe_accuracy(threat: Threat) -> str:
    if threat.final_accuracy is None:
        return ""
    gain = "" if threat.gain is None else f", gain {threat.gain:+.3f}"
    return f"; accuracy {threat.final_accuracy:.3f}{gain}"


def group_by_tier(threats: Sequence[Threat]) -> tuple[Tier, ...]:
    """Return the tiers that have eavesdroppers, in order."""
    return tuple(
        Tier(letter, found)
        for letter in TIERS
        if (found := tuple(threat for threat in threats if threat.tier == letter))
    )
