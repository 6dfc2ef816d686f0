"""The server app of a service of a built-in task in a deployment; it exists on the server only."""

from __future__ import annotations

from covertfl.engines.flower.deployment.server import make_app
from covertfl.service.flower import open_requests

app = make_app(open_requests)
