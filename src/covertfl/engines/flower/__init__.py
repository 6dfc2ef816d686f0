"""Flower as the engine: covertfl's rounds over Flower's messages, nodes and apps.

The only package that imports flwr.  What a user's server app needs is `CovertStrategy`; runs of a
run file are made of `make_server_app` and `make_client_app`.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

from covertfl.errors import Missing

# Nothing is reported to anybody; what the user has set is left alone.  Before flwr is imported.
for _switch, _value in (
    ("FLWR_TELEMETRY_ENABLED", "0"),
    ("FLWR_DISABLE_UPDATE_CHECK", "1"),
    ("RAY_USAGE_STATS_ENABLED", "0"),
):
    os.environ.setdefault(_switch, _value)

if find_spec("flwr") is None:
    raise Missing("[engine] kind = flower needs Flower: pip install 'covertfl[flower]'")

from covertfl.engines.flower.client_app import make_client_app  # noqa: E402
from covertfl.engines.flower.eavesdropper_app import make_eavesdropper_app  # noqa: E402
from covertfl.engines.flower.grid import InProcessGrid  # noqa: E402
from covertfl.engines.flower.server_app import make_server_app  # noqa: E402
from covertfl.engines.flower.strategy import CovertStrategy  # noqa: E402
from covertfl.tasks.task import make_server_task  # noqa: E402

__all__ = [
    "CovertStrategy",
    "InProcessGrid",
    "make_client_app",
    "make_eavesdropper_app",
    "make_server_app",
    "make_server_task",
]
