"""Policy files: a policy as a table in JSON.

`{"format": 1, "problem": "queue", "learn_prob": [oracle][arrival][backlog]}` or
`{"format": 1, "problem": "horizon", "learn_prob": [rounds_left - 1][oracle][backlog]}`.
"""

from __future__ import annotations

import json
import os

from covertfl.decision.arguments import quote, read_path
from covertfl.decision.policy import HorizonTable, QueueTable
from covertfl.errors import InvalidInput
from covertfl.files.atomic import write_atomically
from covertfl.files.format import FORMATS, require_format
from covertfl.files.json_file import parse_json
from covertfl.files.regular import read_bytes

KINDS: dict[object, type[QueueTable] | type[HorizonTable]]
KINDS = {"queue": QueueTable, "horizon": HorizonTable}


def write_policy(path: str | os.PathLike[str], policy: QueueTable | HorizonTable) -> None:
    """Write a policy file, whole or not at all."""
    read_path(path, "path")
    kind = next((name for name, table in KINDS.items() if isinstance(policy, table)), None)
    if kind is None:
        raise InvalidInput(f"policy must be a QueueTable or a HorizonTable, got {quote(policy)}")
    content = {"format": FORMATS["policy"], "problem": kind, "learn_prob": policy.table.tolist()}
    write_atomically(path, json.dumps(content) + "\n")


def read_policy(path: str | os.PathLike[str]) -> QueueTable | HorizonTable:
    """Read a policy file; raise `InvalidInput`, naming file, key and value, if it is wrong."""
    source, name = read_path(path, "path"), os.fspath(path)
    content = parse_json(read_bytes(source, "a policy file"), f"{name}:")
    if isinstance(content, dict):
        require_format("policy", content.pop("format", 1), name)
    if not isinstance(content, dict) or set(content) != {"problem", "learn_prob"}:
        came = list(content) if isinstance(content, dict) else content
        raise InvalidInput(
            f"{name}: a policy file has the keys problem and learn_prob, got {came!r:.40}"
        )
    kind = KINDS.get(content["problem"] if isinstance(content["problem"], str) else "")
    if kind is None:
        raise InvalidInput(
            f"{name}: problem must be queue or horizon, got {content['problem']!r:.40}"
        )
    try:
        return kind(content["learn_prob"])
    except InvalidInput as error:
        raise InvalidInput(f"{name}: {error}") from error
