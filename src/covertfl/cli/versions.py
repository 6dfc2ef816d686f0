"""The command `versions`."""

from __future__ import annotations

from covertfl.cli.options import JsonOption, ServiceOption
from covertfl.cli.output import print_json


def versions(service: ServiceOption = None, as_json: JsonOption = False) -> None:
    """List the models that a running service has released, and the requests that each contains.

    Example: covertfl versions --service runs/service
    """
    from covertfl.service.client import find_service

    content = find_service(service).get("/versions")
    if as_json:
        print_json(content)
        return
    from covertfl.display.service_tables import render_versions
    from covertfl.display.tables import print_tables

    print_tables(render_versions(content["versions"]))
