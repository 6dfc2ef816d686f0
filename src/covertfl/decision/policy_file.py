"""Policy files: a policy as a table in JSON.

`{"format": 1, "problem": "queue", "learn_prob": [oracle][arrival][backlog]}` or
`{"format": 1, "problem": "horizon", "learn_prob": [rounds_left - 1][oracle][backlog]}`.  A policy
that was found on a log also has `states`: the column of the log and the cuts that form its states.
"""

from __future__ import annotations

import json
import os
from typing import Any

from covertfl.decision.arguments import quote, read_path
from covertfl.decision.policy import HorizonTable, QueueTable
from covertfl.decision.states import OracleStates
from covertfl.errors import InvalidInput
from covertfl.files.disk import read_bytes, write_atomically
from covertfl.files.text import FORMATS, parse_json, require_format

KINDS: dict[object, type[QueueTable] | type[HorizonTable]]
KINDS = {"queue": QueueTable, "horizon": HorizonTable}


def write_policy(
    path: str | os.PathLike[str],
    policy: QueueTable | HorizonTable,
    states: OracleStates | None = None,
) -> None:
    """Write a policy file, whole or not at all; `states` are what its states stand for."""
    read_path(path, "path")
    kind = next((name for name, table in KINDS.items() if isinstance(policy, table)), None)
    if kind is None:
        raise InvalidInput(f"policy must be a QueueTable or a HorizonTable, got {quote(policy)}")
    content = {"format": FORMATS["policy"], "problem": kind, "learn_prob": policy.table.tolist()}
    if states is not None:
        content["states"] = {"column": states.column, "cuts": list(states.cuts)}
    write_atomically(path, json.dumps(content) + "\n")


def read_policy(path: str | os.PathLike[str]) -> QueueTable | HorizonTable:
    """Read a policy file; raise `InvalidInput`, naming file, key and value, if it is wrong."""
    content, name = _read_content(path), os.fspath(path)
    kind = KINDS.get(content["problem"] if isinstance(content["problem"], str) else "")
    if kind is None:
        raise InvalidInput(
            f"{name}: problem must be queue or horizon, got {content['problem']!r:.40}"
        )
    try:
        return kind(content["learn_prob"])
    except InvalidInput as error:
        raise InvalidInput(f"{name}: {error}") from error


def read_policy_states(path: str | os.PathLike[str]) -> OracleStates | None:
    """Return what the states of a policy file stand for, None if it does not say."""
    states = _read_content(path).get("states")
    if states is None:
        return None
    try:
        return OracleStates(str(states["column"]), tuple(map(float, states["cuts"])))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(
            f"{os.fspath(path)}: states must have a column and cuts, numbers that increase, got "
            f"{states!r:.40}"
        ) from error


def _read_content(path: str | os.PathLike[str]) -> dict[str, Any]:
    source, name = read_path(path, "path"), os.fspath(path)
    content = parse_json(read_bytes(source, "a policy file"), f"{name}:")
    if isinstance(content, dict):
        require_format("policy", content.pop("format", FORMATS["policy"]), name)
    if not isinstance(content, dict) or set(content) - {"states"} != {"problem", "learn_prob"}:
        came = list(content) if isinstance(content, dict) else content
        raise InvalidInput(
            f"{name}: a policy file has the keys problem and learn_prob, got {came!r:.40}"
        )
    return content
