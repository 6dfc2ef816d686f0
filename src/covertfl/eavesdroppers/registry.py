"""The eavesdroppers by name.

To add one, write a module with its class (see `eavesdropper`) and enter it in `listeners` if it
owns nothing, in `owners` if it does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from covertfl.eavesdroppers.eavesdropper import Eavesdropper, Listener, Means
from covertfl.eavesdroppers.listeners import LISTENERS
from covertfl.eavesdroppers.owners import OWNERS
from covertfl.eavesdroppers.trained import (
    TrainedEavesdropper,
    TrainedListenerEavesdropper,
    TrainedPublicEavesdropper,
)

_CLASSES: Mapping[str, type[Listener]] = {
    **LISTENERS,
    **OWNERS,
    "trained": TrainedEavesdropper,
    "trained-listener": TrainedListenerEavesdropper,
    "trained-public": TrainedPublicEavesdropper,
}
EAVESDROPPERS: Mapping[str, Callable[[Means], Eavesdropper]] = _CLASSES
# What an eavesdropper needs besides the queries, as fields of `Means`.
NEEDS: Mapping[str, tuple[str, ...]] = {
    name: kind.needs for name, kind in _CLASSES.items() if kind.needs
}
# Those that use only which trajectory each query belongs to; formula F4 bounds their success.
BY_SCHEDULE = ("majority", "minority", "likelihood", "change-point")


def list_possible(means: Means) -> list[str]:
    """Return the names of the eavesdroppers whose needs are met by `means`."""
    return [
        name
        for name in EAVESDROPPERS
        if all(getattr(means, need) is not None for need in NEEDS.get(name, ()))
    ]
