"""Flower's wrappers for differential privacy, as far as they keep their promise in a covert run.

A wrapper bounds what each reply can change and adds noise to the result.  With fixed clipping a
decoy's moves get the same noise as the true ones, from a strategy of their own.
"""

from __future__ import annotations

from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    Strategy,
)

from covertfl.engines.flower.strategy_state import list_nested
from covertfl.errors import InvalidInput
from covertfl.kernels.job import Layout
from covertfl.schemes.scheme import Reading

FIXED = (DifferentialPrivacyClientSideFixedClipping, DifferentialPrivacyServerSideFixedClipping)
ADAPTIVE = (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
)


def check_privacy(strategy: Strategy, reading: Reading, layout: Layout) -> None:
    """Raise InvalidInput if a strategy promises a privacy that it could not keep."""
    for part in list_nested(strategy).values():
        name = type(part).__name__
        if isinstance(part, ADAPTIVE):
            raise InvalidInput(
                f"{name} cannot be made covert, because it counts which replies were clipped and a "
                "decoy's are all the same, so that its noise would differ from the true one's: use "
                "fixed clipping"
            )
        if not isinstance(part, FIXED) or part.noise_multiplier == 0.0:
            continue
        if part.accountant is not None:
            raise InvalidInput(
                f"{name} must have no accountant, because copies of it also aggregate what is "
                "discarded: each update of the run is one release, and a decoy's moves are none"
            )
        if reading == "values":
            raise InvalidInput(
                f"{name} needs a scheme that does not use single replies, such as a decoy trained "
                "on public data, because a decoy that does moves by an average of replies that are "
                "not clipped"
            )
        if layout.measured:
            raise InvalidInput(
                f"{name} needs a model without running statistics, because they would be clipped "
                f"and changed at random with the weights, got {layout.names[-1]}: use GroupNorm"
            )
