"""The command that computes the paper's tables and figures: `python -m paper NAME|all`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from covertfl.cli.app import run_app
from covertfl.cli.terminal import JsonOption, advise_if_interrupted, print_json, show_progress
from covertfl.errors import InvalidInput

app = typer.Typer(
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.command()
def reproduce(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Tables and figures, all, or page.")
    ],
    preset: Annotated[
        str,
        typer.Option(
            metavar="READING", help="Reading of the paper: sound, paper-text or paper-code."
        ),
    ] = "sound",
    seeds: Annotated[
        int | None,
        typer.Option(help="Runs of each condition (default: as the experiment chooses)."),
    ] = None,
    first_seed: Annotated[
        int, typer.Option(metavar="N", help="The seeds are N, N + 1, ... (tables of runs only).")
    ] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Compute a short version.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the results.")] = Path(
        "out/reproduce"
    ),
    page: Annotated[
        Path | None,
        typer.Option(metavar="FILE.MD", help="Also write a page on all results in DIR."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compute the paper's tables and figures.

    Our values have intervals and stand beside the paper's.  A NAME is one of table-main,
    figure-accuracy, figure-spga, figure-tracking, figure-cost, theory, partial-oracle,
    table-mnist-20, table-mnist-50, table-fedsgd, table-states, random-policy, mnist-learners, or
    all of them: all.  Each writes DIR/NAME.json and, if it has one, a picture.  Finished parts are
    kept in DIR/cells and not computed again.  With the name page nothing is computed: the page on
    the results in DIR is written, beside them those of other readings in DIR/paper-text and
    DIR/paper-code.

    Example: python -m paper table-main
    """
    from paper.experiment import Request
    from paper.run import PAGE, rebuild_page

    request = Request(preset, seeds, quick, device, first_seed)  # type: ignore[arg-type]
    results: list[dict[str, Any]] = []
    if PAGE not in names:
        results = _compute(names, request, out, as_json)
    elif request != Request() or len(names) > 1:
        raise InvalidInput("page computes nothing: it takes only --out, --page, --json")
    else:
        page = page or out / "reproduction.md"
    if page is not None:
        rebuild_page(out, page)
    if as_json:
        print_json({"results": results, "page": None if page is None else str(page)})
    elif page is not None:
        print(f"Page: {page}")


def _compute(names: list[str], request: Any, out: Path, as_json: bool) -> list[dict[str, Any]]:
    """Run the experiments of a name and print each result when it is done."""
    from covertfl.display.tables import print_tables
    from paper.page import render_result
    from paper.run import choose_names, reproduce as run_experiments

    def show(result: dict[str, Any]) -> None:
        if not as_json:
            print_tables(render_result(result, str(out)))

    advice = "finished parts are kept: the same command continues"
    with advise_if_interrupted(advice), show_progress("reproduce") as on_progress:
        return run_experiments(
            choose_names(names), request, out, on_progress=on_progress, on_result=show
        )


def main() -> None:
    """Run the command."""
    run_app(app, "python -m paper")


if __name__ == "__main__":
    main()
