"""The command line: parses, calls, prints.

Exit status: 0 done, 2 bad input, 3 no solution, 4 data or a dependency is missing.  Results go to
standard output, progress and errors to standard error; `--json` prints one JSON object and nothing
else.
"""

from __future__ import annotations

import enum
import json
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
import typer.core

from covertfl import __version__
from covertfl.errors import CovertflError, InvalidInput, Missing, NoSolution

if TYPE_CHECKING:
    from covertfl.decision.problem_file import LoadedProblem
    from covertfl.runs.build import RunProgress

typer.core.HAS_RICH = False  # help is plain text; otherwise its brackets come out as \[default]

app = typer.Typer(
    name="covertfl",
    help="Covert federated learning: when to send the true model, when a decoy, and what leaks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Method(enum.StrEnum):
    """How `solve` solves."""

    EXACT = "exact"
    LP = "lp"
    SPGA = "spga"


ProblemArgument = Annotated[
    Path | None, typer.Argument(metavar="PROBLEM.TOML", help="Problem file.", show_default=False)
]
PresetOption = Annotated[
    str | None,
    typer.Option("--preset", metavar="READING/NAME", help="A shipped problem instead of a file."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def main() -> None:
    """Run the command line; every refusal is one sentence and an exit status."""
    try:
        status = app(prog_name="covertfl", standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except click.ClickException as error:
        print(_explain(error), file=sys.stderr)
        sys.exit(InvalidInput.exit_status)
    except CovertflError as error:
        print(f"covertfl: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        print(f"covertfl: {name}{error.strerror or error}", file=sys.stderr)
        sys.exit(InvalidInput.exit_status)
    except MemoryError:
        print("covertfl: the problem does not fit into memory", file=sys.stderr)
        sys.exit(NoSolution.exit_status)
    except (KeyboardInterrupt, click.Abort):
        print("covertfl: interrupted", file=sys.stderr)
        sys.exit(130)


def _explain(error: click.ClickException) -> str:
    """What is wrong with the arguments, in one sentence, and where to look them up."""
    message, context = error.format_message(), getattr(error, "ctx", None)
    if message.startswith("Usage:"):  # without a command it is the help itself
        return message
    command = context.command_path if context is not None else "covertfl"
    return f"covertfl: {' '.join(message.split()).rstrip('.')} (see {command} --help)"


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"covertfl {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Version.")
    ] = False,
) -> None:
    pass


def _load(path: Path | None, preset: str | None) -> LoadedProblem:
    from covertfl.decision.problem_file import read_preset, read_problem

    if (path is None) == (preset is None):
        came = "neither" if path is None else "both"
        raise InvalidInput(f"give either a problem file or --preset READING/NAME, got {came}")
    return read_preset(preset) if preset is not None else read_problem(path or "")


def _print_json(content: dict[str, Any]) -> None:
    print(json.dumps(content, allow_nan=False))


@contextmanager
def _working(what: str) -> Iterator[Callable[[str, float], None]]:
    """A bar with elapsed time on standard error, silent where that is not a terminal.

    What it yields is told a detail and the share done, 0 where that is not known.
    """
    if not sys.stderr.isatty():
        yield lambda _detail, _share: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)

        def tell(detail: str, share: float) -> None:
            total = 1.0 if share > 0.0 else None
            progress.update(task, description=f"{what}: {detail}", total=total, completed=share)

        yield tell


# --- solve ------------------------------------------------------------------------------------


@app.command()
def solve(
    problem: ProblemArgument = None,
    preset: PresetOption = None,
    method: Annotated[
        Method,
        typer.Option(help="exact, the linear programme as a check, or the policy gradient."),
    ] = Method.EXACT,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the policy gradient.")] = 0,
    iterations: Annotated[
        int, typer.Option(min=1, help="Iterations of the policy gradient.")
    ] = 2000,
    runs: Annotated[
        int, typer.Option(min=1, help="Runs of the policy gradient; the best is kept.")
    ] = 1,
    policy_out: Annotated[
        Path | None, typer.Option(metavar="POLICY.JSON", help="Write the policy here.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the policy (png, svg or pdf).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find the optimal policy and what is proven about it.

    PROBLEM.TOML describes the oracle, the costs and either a queue or a horizon; `covertfl presets
    sound/queue` prints such a file.

    Example: covertfl solve --preset sound/queue --policy-out policy.json
    """
    from covertfl.api import solution as outcomes

    loaded = _load(problem, preset)
    with _working("solving") as progress:
        if method is Method.SPGA:
            outcome = outcomes.solve_by_search(
                loaded.problem, seed=seed, iterations=iterations, runs=runs, on_progress=progress
            )
        elif method is Method.LP:
            outcome = outcomes.solve_by_programme(loaded.problem, loaded.name, progress)
        else:
            outcome = outcomes.solve_exactly(loaded.problem, progress)
    if policy_out is not None:
        from covertfl.decision.policy_file import write_policy

        write_policy(policy_out, outcome.make_policy())
    if plot is not None:
        outcome.draw(plot)
    if as_json:
        _print_json(outcome.as_json())
    else:
        from covertfl.display.tables import print_result

        print_result(outcome.for_people())


# --- plan -------------------------------------------------------------------------------------


@app.command()
def plan(
    problem: ProblemArgument = None,
    preset: PresetOption = None,
    exposure: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE", help="Find the setting that gives this share of true queries."
        ),
    ] = None,
    plots: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Draw the plan's curves into this folder.")
    ] = None,
    gap: Annotated[
        float, typer.Option(help="f(x_1) - f*, for the number of updates (with --epsilon).")
    ] = 1.0,
    noise: Annotated[
        float, typer.Option(help="L * sigma^2, for the number of updates (with --epsilon).")
    ] = 1.0,
    epsilon: Annotated[
        float | None, typer.Option(help="Also say how many updates reach this accuracy (F1, F2).")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampled bounds.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Say what is possible: updates, rounds, exposure, and what the best eavesdropper gets.

    PROBLEM.TOML describes the oracle, the costs and either a queue or a horizon; `covertfl presets
    sound/main` prints such a file.

    Example: covertfl plan --preset sound/main
    """
    from covertfl.decision.problem import FiniteHorizon
    from covertfl.display.as_json import describe_exposure
    from covertfl.display.tables import print_result, render_exposure, render_updates_needed
    from covertfl.planning.planner import find_limit_for_exposure, find_scale_for_exposure

    loaded = _load(problem, preset)
    updates = None if epsilon is None else _count_updates(gap, noise, epsilon)
    with _working("planning"):
        content, rendered, draw = _plan(loaded, seed)
        answer = None
        if exposure is not None:
            if isinstance(loaded.problem, FiniteHorizon):
                answer = find_scale_for_exposure(loaded.problem, exposure)
            else:
                answer = find_limit_for_exposure(loaded.problem, exposure)
    if answer is not None:
        content["exposure"] = describe_exposure(answer)
    if updates is not None:
        content["updates_needed"] = {"decreasing_step": updates[0], "constant_step": updates[1]}
    if as_json:
        _print_json(content)
    else:
        print_result(rendered)
        if answer is not None:
            print_result(render_exposure(answer))
        if epsilon is not None and updates is not None:
            print_result(render_updates_needed(epsilon, *updates))
    if plots is not None:
        plots.mkdir(parents=True, exist_ok=True)
        draw(plots)


def _count_updates(gap: float, noise: float, epsilon: float) -> tuple[float | None, float | None]:
    """Updates that reach an accuracy with steps 1/m and constant steps; None beyond 1e308."""
    from covertfl.planning.updates import bound_constant_step, bound_decreasing_step

    constant = bound_constant_step(gap, noise, epsilon)
    try:
        decreasing = bound_decreasing_step(gap, noise, epsilon)
    except NoSolution:
        return None, constant if constant < float("inf") else None
    return decreasing, constant


def _plan(loaded: LoadedProblem, seed: int) -> tuple[dict[str, Any], Any, Callable[[Path], None]]:
    """The plan as JSON, for people, and as a function that draws it into a folder."""
    import numpy as np

    from covertfl.decision.problem import FiniteHorizon
    from covertfl.display import as_json as results
    from covertfl.display import tables as render
    from covertfl.planning.planner import plan_horizon, plan_queue

    if isinstance(loaded.problem, FiniteHorizon):
        generator = np.random.default_rng(seed)
        try:
            horizon_plan = plan_horizon(
                loaded.problem, generator=generator, evidence=loaded.evidence
            )
        except InvalidInput as error:
            raise InvalidInput(f"{loaded.name}: [oracle] {error}") from error

        def draw_horizon(folder: Path) -> None:
            from covertfl.display import plots

            figures = {
                "completion.png": plots.plot_completion(horizon_plan),
                "thresholds.png": plots.plot_horizon_policy(horizon_plan.solution),
            }
            for name, figure in figures.items():
                plots.save_figure(figure, folder / name)

        return (
            results.describe_horizon_plan(horizon_plan),
            render.render_horizon_plan(horizon_plan),
            draw_horizon,
        )
    queue_plan = plan_queue(loaded.problem)

    def draw_queue(folder: Path) -> None:
        from covertfl.display import plots

        if not queue_plan.frontier:
            print("covertfl: there is no frontier to draw", file=sys.stderr)
            return
        plots.save_figure(plots.plot_frontier(queue_plan), folder / "frontier.png")

    return results.describe_queue_plan(queue_plan), render.render_queue_plan(queue_plan), draw_queue


# --- fit --------------------------------------------------------------------------------------


@app.command()
def fit(
    log: Annotated[Path, typer.Argument(metavar="LOG.CSV", help="Participation log.")],
    states: Annotated[
        int | None, typer.Option(help="Number of states, formed by quantiles (3).")
    ] = None,
    cuts: Annotated[
        str | None, typer.Option(metavar="8,15", help="Values at which a better state begins.")
    ] = None,
    column: Annotated[str, typer.Option(help="Numeric column that forms the states.")] = "clients",
    min_examples: Annotated[
        float | None, typer.Option(help="Examples from which a round is a success.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="PROBLEM.TOML", help="Problem file.")
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(metavar="POLICY.JSON", help="Search a policy on the log itself."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search.")] = 0,
    iterations: Annotated[int, typer.Option(min=1, help="Iterations of the search.")] = 2000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, where a horizon is written.")] = 45,
    updates: Annotated[int, typer.Option(min=1, help="Updates, where a horizon is written.")] = 16,
    as_json: JsonOption = False,
) -> None:
    """Fit the oracle to a log of past rounds, with 95% intervals.

    LOG.CSV is a file with columns round, clients, examples and, where known, success and
    arrival.  With -o a problem file is written that can be planned with and solved.  With
    --policy the structured policy gradient searches a policy on the recorded rounds, without
    using the fitted chances.

    Example: covertfl fit log.csv --min-examples 6800 -o problem.toml
    """
    from covertfl.fitting.log import read_log
    from covertfl.fitting.oracle import fit_oracle
    from covertfl.fitting.problem import format_oracle_section, format_problem

    fitted = fit_oracle(
        read_log(log),
        column=column,
        num_states=states,
        cuts=None if cuts is None else _parse_cuts(cuts),
        min_examples=min_examples,
    )
    if output is not None:
        from covertfl.files.atomic import write_atomically

        with _working("fitting"):
            content = format_problem(fitted, rounds=rounds, updates=updates)
        write_atomically(output, content)
    found = None
    if policy is not None:
        from covertfl.decision.policy_file import write_policy
        from covertfl.fitting.policy import search_on_log

        with _working("searching") as progress:
            found = search_on_log(
                fitted,
                seed=seed,
                iterations=iterations,
                rounds=rounds,
                updates=updates,
                on_progress=progress,
            )
        write_policy(policy, found.policy)
    if as_json:
        from covertfl.display.as_json import describe_fit

        described = describe_fit(fitted)
        if found is not None:
            described["policy"] = found.describe()
        _print_json(described)
        return
    from covertfl.display.tables import print_result, render_fit

    print_result(render_fit(fitted))
    if output is None:
        print(f"\n{format_oracle_section(fitted)}", end="")
    else:
        print(f"\nWritten to {output}; next: covertfl plan {output}")
    if found is not None:
        print(f"\n{found.sentence}  Policy written to {policy}.")


def _parse_cuts(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise InvalidInput(f"--cuts must be numbers with commas between, got {text!r}") from error


# --- presets and demo -------------------------------------------------------------------------


@app.command()
def presets(
    name: Annotated[
        str | None, typer.Argument(metavar="READING/NAME", help="Print this one's file.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the shipped problems, or print the file of READING/NAME.

    Example: covertfl presets sound/queue > problem.toml
    """
    from covertfl.decision.problem_file import list_presets, read_preset_text

    if name is not None:
        text = read_preset_text(name)
        if as_json:
            import tomllib

            _print_json(tomllib.loads(text))
        else:
            print(text, end="")
    elif as_json:
        _print_json({"presets": list_presets()})
    else:
        print("\n".join(list_presets()))


# --- train ------------------------------------------------------------------------------------


@app.command()
def train(
    run: Annotated[Path, typer.Argument(metavar="RUN.TOML", help="Run file.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the run.")],
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1, max=10_000, help="Runs, in DIR/seed-0, seed-1 ...; one in DIR if not given."
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda, instead of the run file's.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what is there.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Train covertly: each round sends the true weights or a decoy's, as the policy says.

    DIR/public holds what clients were sent, DIR/private what was done; share the first at most.
    A run that is cut off goes on with --resume as if nothing had happened.

    Example: covertfl train run.toml --out runs/first --seeds 10
    """
    from covertfl.display.run_tables import render_training
    from covertfl.display.tables import print_result
    from covertfl.runs.run_file import read_run
    from covertfl.training import train as train_runs

    if resume and force:
        raise InvalidInput("--resume goes on with a run and --force replaces it: give one of them")
    settings = read_run(run)
    if device is not None:
        settings = settings.with_device(device)
    with _watching("training") as tell:
        summaries = train_runs(
            settings, out, seeds=seeds, resume=resume, force=force, on_round=tell
        )
    if as_json:
        _print_json({"out": str(out), "runs": summaries})
    else:
        print_result(render_training(summaries))


@contextmanager
def _watching(what: str) -> Iterator[Callable[[RunProgress], None] | None]:
    """A bar for training runs: round, oracle state, backlog, exposure and the learner's score."""
    if not sys.stderr.isatty():
        yield None
        return
    with _working(what) as tell:
        rounds: dict[object, tuple[int, int]] = {}

        def told(progress: RunProgress) -> None:
            rounds[progress.run] = (progress.round, progress.rounds)
            done, total = (sum(numbers) for numbers in zip(*rounds.values(), strict=True))
            detail = (
                f"seed {progress.seed} round {progress.round}/{progress.rounds}, "
                f"oracle {progress.oracle_state}, backlog {progress.backlog}, "
                f"exposure {progress.exposure:.0%}, learner {progress.score:.3f}"
            )
            tell(detail, done / max(total, 1))

        yield told


@app.command()
def deploy_local(
    run: Annotated[Path, typer.Argument(metavar="RUN.TOML", help="Run file.")],
    nodes: Annotated[
        int | None, typer.Option(min=1, help="SuperNodes; as many as the run has clients.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the run.")] = Path(
        "out/deployment"
    ),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what is there.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
    timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds that a round waits for replies.")
    ] = 120.0,
    project: Annotated[
        Path | None,
        typer.Option(
            "--app", metavar="FOLDER", help="Your own Flower app, instead of the task's; to nodes."
        ),
    ] = None,
    server: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Modules of your server app; never to nodes."),
    ] = None,
    eavesdropper: Annotated[
        str | None,
        typer.Option(metavar="FILE.PY:APP", help="Client app of the last node, which listens."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Train on a Flower federation on this machine: SuperLink, SuperNodes, TLS and node keys.

    All is made on the spot, on loopback, and taken down at the end.  The last node is a normal
    participant that also records what it is sent, into DIR/eavesdropper; `covertfl audit` reads it.
    A node holds the data of one client, so a run file for four nodes has clients = 4 and, say,
    participation = [1, 2, 4] in [federation]; with too few nodes no round can be accepted.

    Example: covertfl deploy-local run.toml --nodes 4 --out runs/deployed
    """
    from covertfl.display.run_tables import render_training
    from covertfl.display.tables import print_result
    from covertfl.runs.run_file import read_run
    from covertfl.training import read_summary

    if resume and force:
        raise InvalidInput("--resume goes on with a run and --force replaces it: give one of them")
    if project is None and (server is not None or eavesdropper is not None):
        raise InvalidInput("--server and --eavesdropper go with --app, got no --app")
    settings = read_run(run)
    _require_flower()
    from covertfl.engines.flower.deployment.checks import find_shortage
    from covertfl.engines.flower.deployment.own_app import find_own_app
    from covertfl.engines.flower.deployment.run import EAVESDROPPER, deploy

    shortage = find_shortage(settings, nodes) if project is None else None
    if shortage is not None:
        _announce(f"warning: {shortage}")
    with _watching("deployment") as tell:
        deploy(
            settings,
            out,
            num_nodes=nodes,
            resume=resume,
            force=force,
            timeout=timeout,
            app=None if project is None else find_own_app(project, server, eavesdropper),
            on_round=tell,
            announce=_announce if sys.stderr.isatty() else None,
        )
    summary, records = read_summary(out), out / EAVESDROPPER
    if as_json:
        _print_json({"out": str(out), "eavesdropper": str(records), "runs": [summary]})
    else:
        print_result(render_training([summary]))
        print(f"What the eavesdropping node was sent: {records}; next: covertfl audit {records}")


def _announce(sentence: str) -> None:
    print(f"covertfl: {sentence}", file=sys.stderr)


def _require_flower() -> None:
    """Say how to get what a deployment needs where it is missing."""
    from importlib.util import find_spec

    from covertfl.runs.build import require_torch

    require_torch()
    if find_spec("flwr") is None:
        raise Missing("a federation needs Flower: pip install 'covertfl[flower]'")


@app.command()
def export(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="MODEL.SAFETENSORS", help="Where it goes.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Write the true model of a run to a file, tensors by parameter name.

    Hand it over by a way that no client can read.  Sent through the federation, as the last query
    or in any other message, it would give away in one round what the whole run has hidden.

    Example: covertfl export runs/first -o model.safetensors
    """
    from covertfl.training import export_model

    exported = export_model(run, output)
    if as_json:
        _print_json(exported)
    else:
        print(
            f"{output}: the true weights after {exported['rounds']} rounds and "
            f"{exported['updates_done']} updates.  Keep it off the channel that clients can read."
        )


@app.command()
def embed(
    comments: Annotated[Path, typer.Argument(metavar="FILE", help="Texts, .csv or .parquet.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="OUT.NPZ", help="Vectors.")],
    text: Annotated[str, typer.Option(metavar="COLUMN", help="Column of the texts.")] = "text",
    label: Annotated[str, typer.Option(metavar="COLUMN", help="Column of the labels.")] = "label",
    as_json: JsonOption = False,
) -> None:
    """Turn labelled texts into vectors that `task = "embeddings"` trains on.

    Example: covertfl embed comments.csv -o mine.npz --text comment --label toxic
    """
    from covertfl.tasks.text import write_embeddings

    with _working("embedding") as tell:
        read = write_embeddings(comments, output, text, label, on_progress=tell)
    counts = {name: int((read.labels == number).sum()) for number, name in enumerate(read.classes)}
    if as_json:
        _print_json({"output": str(output), "rows": len(read.labels), "classes": counts})
    else:
        named = ", ".join(f"{count:,} of class {name}" for name, count in counts.items())
        print(f"{output}: {len(read.labels):,} texts as vectors; {named}")


# --- audit ------------------------------------------------------------------------------------


@app.command()
def audit(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="DIR...", help="Folders of runs, or of their seeds."),
    ] = None,
    matrix: Annotated[
        Path | None,
        typer.Option(metavar="RUN.TOML", help="Run policies x decoys and audit them all."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the matrix goes.")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Seeds of the matrix.")] = 10,
    as_json: JsonOption = False,
) -> None:
    """Say what every kind of eavesdropper would have got from finished runs.

    Takes runs that differ in their seeds only, or public folders that a client recorded; of these
    it says what it cannot know.  With one DIR the result is also kept in DIR/audit.json, but for a
    public folder, which holds what clients were sent and nothing else.

    Example: covertfl audit runs/many
    """
    from covertfl.auditing.folders import audit_folders, write_audit
    from covertfl.auditing.summary import describe_audit
    from covertfl.display.audit_tables import render_audit
    from covertfl.display.tables import print_result

    if matrix is not None:
        if runs or out is None:
            raise InvalidInput("--matrix needs --out and no folders of runs")
        _audit_matrix(matrix, out, seeds, as_json)
        return
    if not runs:
        raise InvalidInput("folders of runs are needed, got none")
    with _working("audit") as tell:
        report = audit_folders(runs, on_progress=tell)
    if as_json:
        _print_json(describe_audit(report))
    else:
        print_result(render_audit(report))
    # Last, so that a folder that cannot be written to does not cost the result.
    if len(runs) == 1:
        write_audit(runs[0], report)


def _audit_matrix(run: Path, out: Path, seeds: int, as_json: bool) -> None:
    from covertfl.auditing.matrix import render_matrix, run_matrix
    from covertfl.display.tables import print_result
    from covertfl.runs.run_file import read_run

    with _working("matrix") as tell:
        content = run_matrix(read_run(run), out, seeds=seeds, on_progress=tell)
    if as_json:
        _print_json(content)
    else:
        print_result(render_matrix(content))
        print(f"Heat map: {content['picture']}")


@app.command()
def report(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run, or of its seeds.")],
    as_json: JsonOption = False,
) -> None:
    """Write one page about a run: curves, exposure, policy map, waits, audit, settings.

    It opens from the disk and loads nothing; its plots are also kept in DIR/report.  Run
    `covertfl audit DIR` before, and the audit is on it.

    Example: covertfl report runs/many
    """
    from covertfl.report.write import write_report

    page = write_report(run, command=f"covertfl report {shlex.quote(str(run))}")
    if as_json:
        _print_json({"page": str(page)})
    else:
        print(page)


# --- demo -------------------------------------------------------------------------------------


@app.command()
def demo(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where files go.")] = Path("out/demo"),
    as_json: JsonOption = False,
) -> None:
    """Train the toxicity classifier covertly and show what the paper's eavesdropper gets.

    Both scenarios, several policies and decoys, five seeds each; writes a page with the curves.

    Example: covertfl demo
    """
    from covertfl.demo.run import run_demo
    from covertfl.display.run_tables import render_demo
    from covertfl.display.tables import print_result

    with _watching("demo") as tell:
        content = run_demo(out, on_round=tell)
    if as_json:
        _print_json(content)
    else:
        print_result(render_demo(content["rows"]))
        print(f"Curves and runs: {content['page']}")


# --- reproduce --------------------------------------------------------------------------------


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A table or figure, all, or page.")],
    preset: Annotated[
        str, typer.Option(metavar="READING", help="sound, paper-text or paper-code.")
    ] = "sound",
    seeds: Annotated[
        int | None, typer.Option(help="Runs of each condition; the experiment's own by default.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A short form.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where results go.")] = Path(
        "out/reproduce"
    ),
    page: Annotated[
        Path | None, typer.Option(metavar="FILE.MD", help="Also write the page on all of DIR.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compute tables and figures of the paper, with intervals and the paper's values beside ours.

    Names: table-main, figure-accuracy, figure-spga, figure-tracking, figure-cost, theory,
    table-mnist-20, table-mnist-50, table-fedsgd, table-states, random-policy.  Each gives
    DIR/NAME.json and, where it has one, a picture.  Finished parts are kept in DIR/cells and not
    computed again.  The name page computes nothing and writes the page on what DIR holds.

    Example: covertfl reproduce table-main
    """
    from covertfl.experiments.experiment import Request
    from covertfl.reproduction.page import render_section
    from covertfl.reproduction.run import PAGE, choose_names, rebuild_page
    from covertfl.reproduction.run import reproduce as run_experiments

    target = page if page is not None or name != PAGE else out / "reproduction.md"
    results: list[dict[str, Any]] = []
    request = Request(preset, seeds, quick, device)  # type: ignore[arg-type]
    if name == PAGE and request != Request():
        raise InvalidInput("reproduce page computes nothing: it takes only --out, --page, --json")
    if name != PAGE:

        def show(result: dict[str, Any]) -> None:
            if not as_json:
                print(render_section(result, pictures=f"{out}/"))

        with _working("reproduce") as tell:
            results = run_experiments(
                choose_names(name), request, out, on_progress=tell, on_result=show
            )
    if target is not None:
        rebuild_page(out, target)
    if as_json:
        _print_json({"results": results, "page": None if target is None else str(target)})
    elif target is not None:
        print(f"Page: {target}")
