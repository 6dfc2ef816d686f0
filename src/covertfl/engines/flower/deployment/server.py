"""The server app of a built-in task in a deployment; it exists on the server only."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from covertfl.engines.flower.deployment.progress import make_round_callback, reporting_failures
from covertfl.engines.flower.deployment.server_settings import read_server_settings
from covertfl.engines.flower.server_app import make_server_app
from covertfl.runs.run_file import read_run


def make_app() -> ServerApp:
    """Return the server app of the run that environment variables name."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        settings = read_server_settings()
        with reporting_failures(settings.progress):
            run_app = make_server_app(
                read_run(settings.run),
                settings.out,
                resume=settings.resume,
                force=settings.force,
                timeout=settings.timeout,
                on_round=make_round_callback(settings.progress),
            )
            run_app(grid, context)

    return app
