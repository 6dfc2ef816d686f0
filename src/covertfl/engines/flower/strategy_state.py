"""What a Flower strategy remembers: its attributes copied, restored and stored in a checkpoint.

A strategy may wrap another one, so that each is looked at together with those inside it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import Strategy

from covertfl.errors import InvalidInput

Arrays = dict[str, npt.NDArray[Any]]


def list_nested(strategy: Strategy, place: str = "") -> dict[str, Strategy]:
    """Return a strategy and those that it wraps, outermost first, by path of attributes."""
    nested = {place: strategy}
    for key, value in vars(strategy).items():
        if isinstance(value, Strategy) and value is not strategy:
            nested |= list_nested(value, f"{place}{key}/")
    return nested


def find_setting(strategy: Strategy, key: str, default: Any) -> Any:
    """Return an attribute of a strategy, or of the first one it wraps that has it."""
    for owner in list_nested(strategy).values():
        if key in vars(owner):
            return vars(owner)[key]
    return default


def require_distinct(strategies: Sequence[Strategy]) -> None:
    """Raise InvalidInput if strategies share an instance, and with it a server optimiser."""
    parts = [part for strategy in strategies for part in list_nested(strategy).values()]
    if len({id(part) for part in parts}) < len(parts):
        raise InvalidInput(
            "make_strategy must make a new strategy each time, got the same one again: "
            "trajectories that share a server optimiser reveal each other"
        )


def transfer_state(source: Strategy, target: Strategy) -> None:
    """Set a strategy, and those that it wraps, to copies of another one's attributes.

    Both come from the same function.  Functions, and what cannot be copied, stay the target's own.
    """
    owners = list_nested(target)
    for place, owner in list_nested(source).items():
        theirs, own = vars(owner), vars(owners[place])
        for key in set(own) - set(theirs):
            del own[key]
        for key, value in theirs.items():
            if isinstance(value, Strategy) or (key in own and _is_same(value, own[key])):
                continue
            try:
                own[key] = copy.deepcopy(value)
            except Exception:  # a lock, a connection: nothing that an aggregation changes
                own.setdefault(key, value)


def pack_state(
    role: str, strategy: Strategy, fresh: Strategy, arrays: Arrays
) -> tuple[dict[str, Any], list[str]]:
    """Return the attributes that differ from a fresh strategy's, and those that cannot be stored.

    Their names begin with the role; arrays among them are added to `arrays`, by name.
    """
    facts, lost = {}, []
    untouched = list_nested(fresh)
    for place, owner in list_nested(strategy).items():
        known = vars(untouched[place]) if place in untouched else {}
        for key, value in vars(owner).items():
            name = f"{role}/{place}{key}"
            if isinstance(value, Strategy) or _is_same(value, known.get(key)):
                continue
            try:
                facts[name] = _pack(value, name, arrays)
            except TypeError:
                lost.append(name)
    return facts, lost


def unpack_state(
    role: str, strategy: Strategy, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
) -> None:
    """Set the attributes of a strategy that `pack_state` stored."""
    owners = list_nested(strategy)
    for name, packed in facts.items():
        place, _, key = name.removeprefix(f"{role}/").rpartition("/")
        owner = owners.get(f"{place}/" if place else "")
        if name.startswith(f"{role}/") and owner is not None:
            setattr(owner, key, _unpack(packed, arrays))


def _is_same(value: Any, fresh: Any) -> bool:
    """Return whether an attribute is as in a fresh strategy."""
    if value is fresh or (callable(value) and not isinstance(value, ArrayRecord)):
        return True
    plain = (bool, int, float, str)
    return isinstance(value, plain) and type(value) is type(fresh) and bool(value == fresh)


def _pack(value: Any, name: str, arrays: Arrays) -> Any:
    """Return a value in a form that JSON can hold; its arrays are added to `arrays`."""
    if value is None or isinstance(value, bool | int | float | str):
        return {"plain": value}
    if isinstance(value, np.generic):
        return {"plain": value.item()}
    if isinstance(value, np.ndarray):
        arrays[name] = value
        return {"array": name}
    if isinstance(value, ArrayRecord):
        parts = {key: array.numpy() for key, array in value.items()}
        return {"record": _pack(parts, name, arrays)}
    if isinstance(value, Mapping):
        return {
            "table": {str(key): _pack(item, f"{name}/{key}", arrays) for key, item in value.items()}
        }
    if isinstance(value, list | tuple):
        return {"list": [_pack(item, f"{name}/{i}", arrays) for i, item in enumerate(value)]}
    raise TypeError(name)


def _unpack(packed: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Any:
    """Return the value that `_pack` was given."""
    [(kind, content)] = packed.items()
    if kind == "array":
        return arrays[content]
    if kind == "record":
        parts = _unpack(content, arrays)
        return ArrayRecord({key: Array(np.ascontiguousarray(part)) for key, part in parts.items()})
    if kind == "table":
        return {key: _unpack(item, arrays) for key, item in content.items()}
    if kind == "list":
        return [_unpack(item, arrays) for item in content]
    return content
