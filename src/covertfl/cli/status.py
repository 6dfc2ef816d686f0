"""The command `status`."""

from __future__ import annotations

from covertfl.cli.options import JsonOption, ServiceOption
from covertfl.cli.output import print_json

OPEN = ("waiting", "serving")


def status(service: ServiceOption = None, as_json: JsonOption = False) -> None:
    """Show what a running service does: waits, exposure, open requests and warnings.

    Example: covertfl status --service runs/service
    """
    from covertfl.service.client import find_service

    found = find_service(service)
    content = found.get("/status")
    if as_json:
        print_json(content)
        return
    from covertfl.display.service_tables import render_status
    from covertfl.display.tables import print_tables

    requests = found.get("/requests?limit=1000")["requests"]
    waiting = [request for request in reversed(requests) if request["state"] in OPEN]
    print_tables(render_status(content, waiting))
