"""The eavesdroppers by name: those built in, and plug-ins.

To add one, write its class (see `eavesdropper`) in `listeners`, `owners` or `clients`, by what it
holds, and enter it in `kinds`.  A plug-in is a class derived from `Listener`, too
(docs/extending.md).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from covertfl.eavesdroppers.eavesdropper import NEEDED, Eavesdropper, Listener, Means
from covertfl.eavesdroppers.kinds import KINDS
from covertfl.eavesdroppers.trained import (
    TrainedEavesdropper,
    TrainedListenerEavesdropper,
    TrainedPublicEavesdropper,
)
from covertfl.errors import InvalidInput
from covertfl.plugins import PlugIns, explaining

_CLASSES: Mapping[str, type[Listener]] = {
    **KINDS,
    "trained": TrainedEavesdropper,
    "trained-listener": TrainedListenerEavesdropper,
    "trained-public": TrainedPublicEavesdropper,
}
EAVESDROPPERS: Mapping[str, Callable[[Means], Eavesdropper]] = _CLASSES
# Those that use only which trajectory each query belongs to; formula F4 bounds their success.
BY_SCHEDULE = ("majority", "minority", "likelihood", "change-point")
EAVESDROPPER_PLUG_INS = PlugIns("eavesdropper", "covertfl.eavesdroppers", _CLASSES)


def find_class(name: str) -> type[Listener]:
    """Return the class of an eavesdropper.

    Raises
    ------
    InvalidInput
        if the name is unknown, or a plug-in cannot be imported or is no eavesdropper
    """
    found = EAVESDROPPER_PLUG_INS.find(name, "an eavesdropper")
    if name not in _CLASSES:
        _check_class(name, found)
    kind: type[Listener] = found
    return kind


def _check_class(name: str, found: Any) -> None:
    """Raise InvalidInput if a plug-in is not a whole subclass of `Listener`."""
    if not isinstance(found, type) or not issubclass(found, Listener) or inspect.isabstract(found):
        raise InvalidInput(
            f"eavesdropper {name} must be a class derived from "
            "covertfl.eavesdroppers.eavesdropper.Listener with a method belief"
        )
    if not isinstance(getattr(found, "threat", None), str):
        raise InvalidInput(f"eavesdropper {name} must have threat, what it has, in one line")
    if found.tier not in ("A", "B", "C", "D"):
        raise InvalidInput(f"eavesdropper {name}: tier must be A, B, C or D, got {found.tier!r}")
    unknown = [need for need in found.needs if need not in NEEDED]
    if unknown:
        raise InvalidInput(
            f"eavesdropper {name}: needs must be of {', '.join(NEEDED)}, got {unknown[0]!r}"
        )


def make_eavesdropper(name: str, means: Means) -> Listener:
    """Make an eavesdropper; a plug-in is given only those means that it lists in `needs`."""
    kind = find_class(name)
    if name in _CLASSES:
        return kind(means)
    withheld: dict[str, Any] = {need: None for need in NEEDED if need not in kind.needs}
    with explaining(f"eavesdropper {name} cannot be made"):
        return kind(replace(means, **withheld))


def sort_names(names: Iterable[str]) -> list[str]:
    """Return names in the order of the registry, plug-ins last; raise InvalidInput for others."""
    wanted = dict.fromkeys(names)
    for name in wanted:
        EAVESDROPPER_PLUG_INS.check(name, "an eavesdropper")
    known = [name for name in EAVESDROPPERS if name in wanted]
    return [*known, *(name for name in wanted if name not in EAVESDROPPERS)]


def list_missing(name: str, means: Means) -> list[str]:
    """Return what an eavesdropper needs and the means lack, in words."""
    return [NEEDED[need] for need in find_class(name).needs if getattr(means, need) is None]


def list_possible(means: Means) -> list[str]:
    """Return the names of the eavesdroppers built in whose needs are met by `means`."""
    return [name for name in EAVESDROPPERS if not list_missing(name, means)]
