"""The commands on results: `audit`, `report`, `demo` and `reproduce`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from covertfl.cli.options import JsonOption
from covertfl.cli.output import print_json, print_result, show_progress, show_rounds
from covertfl.errors import InvalidInput


def audit(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="DIR...", help="Folders of runs, or of their seeds."),
    ] = None,
    matrix: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN.TOML", help="Train every policy with every decoy, and audit all of them."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the runs of --matrix.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Number of seeds of --matrix.")] = 10,
    as_json: JsonOption = False,
) -> None:
    """Measure what eavesdroppers could learn from finished runs.

    DIR... are runs that differ only in their seeds, or public folders that a client recorded; what
    cannot be known from a public folder is reported as unknown.  With one DIR the result is also
    written to DIR/audit.json, except for a public folder, which holds only what clients were sent.

    Example: covertfl audit runs/many
    """
    if matrix is not None:
        if runs or out is None:
            raise InvalidInput("--matrix needs --out and no folders of runs")
        _audit_matrix(matrix, out, seeds, as_json)
        return
    if not runs:
        raise InvalidInput("give one or more folders of runs, got none")
    from covertfl.api.audit import audit as audit_runs

    with show_progress("audit") as on_progress:
        report = audit_runs(*runs, on_progress=on_progress)
    print_result(report, as_json=as_json)
    # Last, so that the result is printed even if the folder cannot be written to.
    if len(runs) == 1:
        report.save(runs[0])


def _audit_matrix(run: Path, out: Path, seeds: int, as_json: bool) -> None:
    from covertfl.auditing.matrix import render_matrix, run_matrix
    from covertfl.display.tables import print_tables
    from covertfl.runs.run_file import read_run

    with show_progress("matrix") as on_progress:
        content = run_matrix(read_run(run), out, seeds=seeds, on_progress=on_progress)
    if as_json:
        print_json(content)
    else:
        print_tables(render_matrix(content))
        print(f"Heat map: {content['picture']}")


def report(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run, or of its seeds.")],
    as_json: JsonOption = False,
) -> None:
    """Write an HTML page about a run.

    The page shows curves, exposure, the policy, waiting times, the audit and the settings.  It is
    self-contained; its pictures are also in DIR/report.  Run `covertfl audit DIR` first to include
    the audit.

    Example: covertfl report runs/many
    """
    from covertfl.report.write import write_report

    page = write_report(run, command=f"covertfl report {shlex.quote(str(run))}")
    if as_json:
        print_json({"page": str(page)})
    else:
        print(page)


def demo(
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder of the runs and the page.")
    ] = Path("out/demo"),
    as_json: JsonOption = False,
) -> None:
    """Train a toxicity classifier covertly and show what leaks.

    Trains the paper's two scenarios with several policies and decoys, five seeds each, and shows
    what the paper's eavesdropper ends up with; writes a page with the curves.

    Example: covertfl demo
    """
    from covertfl.demo.run import run_demo
    from covertfl.display.run_tables import render_demo
    from covertfl.display.tables import print_tables

    with show_rounds("demo") as on_round:
        content = run_demo(out, on_round=on_round)
    if as_json:
        print_json(content)
    else:
        print_tables(render_demo(content["rows"]))
        print(f"Curves and runs: {content['page']}")


def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A table or figure, all, or page.")],
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

    Our values have intervals and stand beside the paper's.  NAME is one of table-main,
    figure-accuracy, figure-spga, figure-tracking, figure-cost, theory, table-mnist-20,
    table-mnist-50, table-fedsgd, table-states, random-policy, or all of them: all.  Each writes
    DIR/NAME.json and, if it has one, a picture.  Finished parts are kept in DIR/cells and not
    computed again.  With the name page nothing is computed: the page on the results in DIR is
    written.

    Example: covertfl reproduce table-main
    """
    from covertfl.experiments.experiment import Request
    from covertfl.reproduction.run import PAGE, rebuild_page

    request = Request(preset, seeds, quick, device)  # type: ignore[arg-type]
    results: list[dict[str, Any]] = []
    if name != PAGE:
        results = _compute(name, request, out, as_json)
    elif request != Request():
        raise InvalidInput("reproduce page computes nothing: it takes only --out, --page, --json")
    else:
        page = page or out / "reproduction.md"
    if page is not None:
        rebuild_page(out, page)
    if as_json:
        print_json({"results": results, "page": None if page is None else str(page)})
    elif page is not None:
        print(f"Page: {page}")


def _compute(name: str, request: Any, out: Path, as_json: bool) -> list[dict[str, Any]]:
    """Run the experiments of a name and print each result when it is done."""
    from covertfl.reproduction.page import render_section
    from covertfl.reproduction.run import choose_names
    from covertfl.reproduction.run import reproduce as run_experiments

    def show(result: dict[str, Any]) -> None:
        if not as_json:
            print(render_section(result, pictures=f"{out}/"))

    with show_progress("reproduce") as on_progress:
        return run_experiments(
            choose_names(name), request, out, on_progress=on_progress, on_result=show
        )
