"""How the rounds of a run are carried over Flower's messages, nodes and apps.

The only package that imports flwr; `covertfl.flower` is its front for users.  Start with `strategy`
(`CovertStrategy`, which makes any Flower strategy covert) and `engine`, which answers the queries
of a run; `carrier` carries them over a grid.  `messages`, `array_form`, `exchange` and `gathering`
are the way of a query and its replies; `grid`, `simulation` and `deployment` are the three places
where nodes can be.
"""

import os
from importlib.util import find_spec

from covertfl.errors import Missing

# Nothing is reported to anybody, unless the user has set it so.  Before flwr is imported.
for _switch, _value in (
    ("FLWR_TELEMETRY_ENABLED", "0"),
    ("FLWR_DISABLE_UPDATE_CHECK", "1"),
    ("RAY_USAGE_STATS_ENABLED", "0"),
):
    os.environ.setdefault(_switch, _value)

if find_spec("flwr") is None:
    raise Missing("Flower is not installed: pip install 'covertfl[flower]'")
