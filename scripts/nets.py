"""Record what commands, runs and Flower in process produce, and compare it with a record.

    python scripts/nets.py record nets.json                   # before code is moved
    python scripts/nets.py compare nets.json                  # afterwards
    python scripts/nets.py compare nets.json --only run/      # a part of it
    python scripts/nets.py compare nets.json --without noise  # keys that are gone on purpose

Everything goes through the command line and the folders of runs, so that code inside can move.  A
record holds the `--json` of commands without times and versions, the demo's rows, and for each
policy, decoy and engine of a small run what clients were sent (names are hashes), the private
rounds, the metrics, and a hash of the exported weights.  Digits depend on the processor: record and
compare on the same machine.  Exit status 1 if something differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parents[1]
LOG = ROOT / "src/covertfl/data/participation.csv"
LEFT_OUT = {"seconds", "version", "format", "versions"}  # differ between machines and releases
MOST_SHOWN = 5  # differences of one entry

BASE = """
task = "digits"
seed = 3
{top}
[data]
{data}
[federation]
clients = 6
participation = [2, 4, 6]
batch_size = 20
{federation}
{scheme}
[engine]
{engine}
[oracle]
transition = [[0.6, 0.4, 0.0], [0.3, 0.4, 0.3], [0.0, 0.4, 0.6]]
success = [0.2, 0.5, 0.9]
"""
HORIZON = """
[cost]
privacy = [1.8, 0.8, 0.3]
learning = { shape = "quadratic", scale = 0.6 }
[horizon]
rounds = 12
updates = 4
"""
QUEUE = """
[cost]
privacy = [1.8, 0.8, 0.3]
learning = { shape = "linear", scale = 0.6 }
[queue]
arrival_prob = 0.1
arrival_size = 2
learning_limit = 3.0
capacity = 6
overflow_cost = 5.0
"""
POLICIES = (
    *("optimal", "spga", "minority", "greedy", "random", "always-learn"),
    "always-obfuscate",
)
DECOYS = ("random", "mirrored", "public", "adversarial")
ONE_CLASS = 'model = "mlp"\npublic_classes = 1\npublic_class_share = 1.0\npublic_size = 0.25'
FLOWER = 'kind = "flower"\nmode = "in-process"'

# Commands in order: later ones use the files of earlier ones.
COMMANDS = {
    "presets": "presets --json",
    "preset": "presets sound/main --json",
    "solve_queue": "solve --preset sound/queue --policy-out policy.json --json",
    "solve_horizon": "solve --preset sound/main --json",
    "solve_lp": "solve --preset paper-code/queue --method lp --json",
    "solve_spga": "solve --preset paper-code/queue --method spga --iterations 30 --runs 2 --json",
    "solve_spga_horizon": "solve --preset sound/main --method spga --iterations 30 --json",
    "plan_horizon": "plan --preset sound/main --exposure 0.4 --json",
    "plan_queue": "plan --preset paper-code/queue --exposure 0.6 --json",
    "fit": "fit log.csv --cuts 8,15 --min-examples 6800 -o fitted.toml --json",
    "fit_policy": "fit log.csv --min-examples 6800 --policy log-policy.json --iterations 30 --json",
    "plan_fitted": "plan fitted.toml --json",
    "train": "train run.toml --out runs/digits --json",
    "train_seeds": "train run.toml --out runs/seeds --seeds 2 --json",
    "audit": "audit runs/digits --rehearsals 3 --json",
    "audit_seeds": "audit runs/seeds --json",
    "export": "export runs/digits -o model.safetensors --json",
    "report": "report runs/digits --json",
}


def write_run(kind: str = HORIZON, **parts: str) -> str:
    """Return the text of a run file: what a part does not say is the default."""
    filled = dict.fromkeys(("top", "federation", "engine", "policy", "decoy"), "")
    filled |= {"data": 'model = "logistic"', **parts}
    scheme = f"[policy]\n{filled['policy']}\n[decoy]\n{filled['decoy']}"
    return BASE.format(**{"scheme": scheme, **filled}) + kind


def write_exchangeable(kind: str, trajectories: int, **parts: str) -> str:
    """Return the text of an exchangeable run."""
    top = parts.pop("top", "") + '\nscheme = "exchangeable"'
    scheme = f"[exchangeable]\ntrajectories = {trajectories}"
    return write_run(kind, data=ONE_CLASS, scheme=scheme, top=top, **parts)


def list_runs() -> dict[str, str]:
    """Return run files by name."""
    long = HORIZON.replace("rounds = 12", "rounds = 40")
    queue = partial(write_run, QUEUE, top="rounds = 60")
    runs = {f"policy-{kind}": write_run(policy=f'kind = "{kind}"') for kind in POLICIES}
    runs |= {f"decoy-{kind}": write_run(decoy=f'kind = "{kind}"') for kind in DECOYS}
    runs |= {
        "gated": write_run(decoy="gated = true"),
        "ungated": write_run(decoy="gated = false"),
        "by-model": write_run(federation='acceptance = "model"'),
        "fedsgd": write_run(federation='algorithm = "fedsgd"'),
        "mlp": write_run(data='model = "mlp"'),
        "dirichlet": write_run(data='model = "logistic"\nsplit = { dirichlet = 0.3 }'),
        "sgd": write_run(federation='optimizer = { name = "sgd", lr = 0.05 }'),
        "queue": queue(),
        "queue-file": queue(policy='kind = "file"\npath = "policy.json"'),
        "queue-live": queue(policy='kind = "spga"\nrefresh = 20'),
        "exchangeable-2": write_exchangeable(long, 2),
        "exchangeable-4": write_exchangeable(long, 4),
        "exchangeable-queue": write_exchangeable(QUEUE, 2, top="rounds = 60"),
        "exchangeable-fedsgd": write_exchangeable(long, 2, federation='algorithm = "fedsgd"'),
        "flower": write_run(engine=FLOWER),
        "flower-minority": write_run(engine=FLOWER, policy='kind = "minority"'),
        "flower-queue": queue(engine=FLOWER),
        "flower-exchangeable": write_exchangeable(long, 2, engine=FLOWER),
    }
    return runs


RESUMED = ("policy-optimal", "exchangeable-2", "queue", "flower")


def leave_out(content: Any, names: set[str]) -> Any:
    """Return JSON content without some keys, at any depth."""
    if isinstance(content, dict):
        kept = {key: value for key, value in content.items() if key not in names}
        return {key: leave_out(value, names) for key, value in kept.items()}
    return [leave_out(value, names) for value in content] if isinstance(content, list) else content


def run_command(command: str, folder: Path) -> Any:
    """Run a command and return its JSON, or how it failed."""
    words = [sys.executable, "-m", "covertfl", *shlex.split(command)]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"status": done.returncode, "error": done.stdout + done.stderr}
    return leave_out(json.loads(done.stdout), LEFT_OUT)


def read_lines(path: Path) -> list[Any]:
    """Return the lines of a file as JSON."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def hash_tensors(path: Path) -> str:
    """Return a hash of the names, shapes and bytes of tensors, without the file's description."""
    digest = hashlib.sha256()
    for name, array in sorted(load_file(path).items()):
        digest.update(f"{name} {array.shape} {array.dtype}".encode() + array.tobytes())
    return digest.hexdigest()


def describe_folder(folder: Path) -> dict[str, Any]:
    """Return what a run's folder says, and a hash of its exported weights."""
    model = folder.parent / f"{folder.name}.safetensors"
    exported = run_command(f"export {folder} -o {model} --json", folder.parent)
    weights = sorted((folder / "public/weights").iterdir())
    return {
        "public": read_lines(folder / "public/rounds.jsonl"),
        "sent": {path.name: hash_tensors(path) for path in weights},
        "private": read_lines(folder / "private/rounds.jsonl"),
        "metrics": read_lines(folder / "metrics.jsonl"),
        "summary": leave_out(json.loads((folder / "summary.json").read_text()), LEFT_OUT),
        "exported": hash_tensors(model) if model.exists() else exported,
    }


def train_run(text: str, folder: Path) -> dict[str, Any]:
    """Train a run and return what is in its folder."""
    place = folder / "run.toml"
    place.write_text(text)
    shutil.copy(folder.parent / "policy.json", folder)
    failed = run_command("train run.toml --out run --json", folder)
    return failed if "error" in failed else describe_folder(folder / "run")


def resume_run(text: str, folder: Path) -> dict[str, Any]:
    """Kill a run after its fifth round, resume it, and return what is in its folder."""
    (folder / "run.toml").write_text(text)
    words = [sys.executable, "-m", "covertfl", *shlex.split("train run.toml --out run --json")]
    process = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL)
    lines = folder / "run/private/rounds.jsonl"
    while process.poll() is None:
        if lines.exists() and lines.read_bytes().count(b"\n") >= 5:
            process.send_signal(signal.SIGKILL)
            process.wait()
        time.sleep(0.002)
    failed = run_command("train run.toml --out run --resume --json", folder)
    return failed if "error" in failed else describe_folder(folder / "run")


def list_entries(folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield names of entries and how each is made; commands go first, as one sequence."""
    work = folder / "commands"
    work.mkdir()
    shutil.copy(LOG, work / "log.csv")
    (work / "run.toml").write_text(write_run())

    def run_commands() -> dict[str, Any]:
        return {name: run_command(command, work) for name, command in COMMANDS.items()}

    yield "commands", run_commands
    yield "demo", lambda: run_command("demo --json --out demo", folder)
    run_command(f"solve run.toml --policy-out {folder / 'policy.json'} --json", work)
    queue = work / "queue.toml"
    queue.write_text(BASE.partition("[oracle]")[1] + BASE.partition("[oracle]")[2] + QUEUE)
    run_command(f"solve queue.toml --policy-out {folder / 'policy.json'} --json", work)
    for name, text in list_runs().items():
        for kind, make in (("run", train_run), ("resumed", resume_run)):
            if kind == "run" or name in RESUMED:
                place = folder / f"{kind}-{name}"
                place.mkdir()
                yield f"{kind}/{name}", partial(make, text, place)


def make_record(only: str) -> dict[str, Any]:
    """Make all entries whose names contain a text."""
    with tempfile.TemporaryDirectory(prefix="covertfl-nets-") as folder:
        chosen = {name: make for name, make in list_entries(Path(folder)) if only in name}
        with ThreadPoolExecutor(2) as pool:
            waiting = {name: pool.submit(make) for name, make in chosen.items()}
            found = {}
            for name, future in waiting.items():
                found[name] = future.result()
                print(f"  {name}", file=sys.stderr)
    return found


def list_differences(found: Any, kept: Any, where: str) -> Iterator[str]:
    """Yield where two JSON values differ."""
    if isinstance(found, Mapping) and isinstance(kept, Mapping):
        for key in sorted({*found, *kept}):
            place = f"{where}.{key}"
            if key not in found or key not in kept:
                yield f"{place}: only in the {'record' if key in kept else 'new one'}"
            else:
                yield from list_differences(found[key], kept[key], place)
    elif isinstance(found, list) and isinstance(kept, list) and len(found) == len(kept):
        for number, (one, other) in enumerate(zip(found, kept, strict=True)):
            yield from list_differences(one, other, f"{where}[{number}]")
    elif found != kept:
        yield f"{where}: {json.dumps(kept)[:60]} became {json.dumps(found)[:60]}"


def compare(kept: Mapping[str, Any], *, only: str, without: set[str]) -> int:
    """Print what differs from a record; return the number of entries that differ."""
    found, changed = make_record(only), 0
    for name, entry in found.items():
        if name not in kept:
            print(f"{name}: not in the record")
            continue
        new, old = leave_out(entry, without), leave_out(kept[name], without)
        differences = list(list_differences(new, old, name))
        changed += bool(differences)
        for line in differences[:MOST_SHOWN]:
            print(line)
        if len(differences) > MOST_SHOWN:
            print(f"{name}: and {len(differences) - MOST_SHOWN} more differences")
    print(f"{len(found)} entries, {changed} differ")
    return changed


def main() -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="entries whose names contain this text")
    parser.add_argument("--without", default="", help="keys that do not count, with commas")
    asked = parser.parse_args()
    if asked.action == "record":
        asked.file.write_text(json.dumps(make_record(asked.only)))
        return 0
    kept = json.loads(asked.file.read_text())
    return int(compare(kept, only=asked.only, without=set(asked.without.split(","))) > 0)


if __name__ == "__main__":
    sys.exit(main())
