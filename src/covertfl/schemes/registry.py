"""The schemes by name: those built in, and plug-ins.

To add one, write its module (see `scheme`) and enter its class in `SCHEMES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from covertfl.errors import InvalidInput
from covertfl.plugins import PlugIns
from covertfl.schemes.exchangeable import Exchangeable
from covertfl.schemes.scheduled import Scheduled
from covertfl.schemes.scheme import Scheme

SCHEMES: Mapping[str, type[Scheme]] = {"scheduled": Scheduled, "exchangeable": Exchangeable}
DEFAULT = "scheduled"
SCHEME_PLUG_INS = PlugIns("scheme", "covertfl.schemes", SCHEMES)
# Keys of earlier run files, and what has taken their place.
EARLIER: Mapping[tuple[str, ...], str] = {
    ("policy", "preset"): "name the preset at the top: problem",
    ("policy", "problem"): "name the problem file at the top: problem",
    ("policy", "trajectories"): 'write scheme = "exchangeable" and [exchangeable] trajectories',
    ("decoy", "pivot"): 'write scheme = "exchangeable" and [exchangeable] pivot',
}
EARLIER_KINDS: Mapping[tuple[str, str, str], str] = {
    ("policy", "kind", "exchangeable"): 'write scheme = "exchangeable" instead of a policy',
    ("decoy", "kind", "replica"): 'write scheme = "exchangeable", which makes its replicas itself',
}


@cache
def find_scheme(name: str, key: str = "scheme") -> type[Scheme]:
    """Return the class of a scheme, imported if it is a plug-in.

    Raises
    ------
    InvalidInput
        about `key` if the name stands for nothing, about the plug-in if it is no scheme
    """
    SCHEME_PLUG_INS.check(name, key)
    try:
        found: Any = SCHEME_PLUG_INS.find(name, key)
    except InvalidInput as error:  # of the plug-in: say which file names it
        raise InvalidInput(f"{key.removesuffix('scheme')}{error}") from error
    if not (isinstance(found, type) and issubclass(found, Scheme)):
        raise InvalidInput(
            f"{key} {name} must be a class derived from covertfl.schemes.scheme.Scheme, got "
            f"{found!r}"
        )
    return found


def refuse_others(content: Mapping[str, Any], name: str, scheme: str) -> None:
    """Raise InvalidInput for keys of earlier run files, and for sections of other schemes.

    Parameters
    ----------
    content : of the run file `name`
    scheme : that it names
    """
    for (section, key), advice in EARLIER.items():
        if key in _read_table(content, section):
            raise InvalidInput(f"{name}: [{section}] {key} is no longer a key: {advice}")
    for (section, key, value), advice in EARLIER_KINDS.items():
        if _read_table(content, section).get(key) == value:
            raise InvalidInput(f"{name}: [{section}] {key} = {value} is no longer known: {advice}")
    own = find_scheme(scheme, f"{name}: scheme").sections
    for other, kind in SCHEMES.items():
        for section in kind.sections:
            if section in content and section not in own:
                raise InvalidInput(
                    f"{name}: [{section}] belongs to scheme = {other}, got scheme = {scheme}"
                )


def _read_table(content: Mapping[str, Any], section: str) -> Mapping[str, Any]:
    found = content.get(section)
    return found if isinstance(found, Mapping) else {}
