"""Measure what CovertStrategy costs compared with the strategy it wraps, for docs/scale.md.

    python benchmarks/flower_costs.py [--only overhead|scale|rounds] [--quick] [--write]
        [--parameters 1e5]

Every federation runs in a separate process (`flower_process.py`), stock and covert in turn; those
of `rounds` share one, so that a machine with other work slows both.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flower_process import CHECKPOINT, CLIENTS, DECOY, OWN, RECORDS, WRAPPED
from machine import describe_machine, is_busy
from measurement import format_seconds, run_apart

from covertfl.files.atomic import write_atomically

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "scale.md"
PROCESS = str(Path(__file__).with_name("flower_process.py"))
LIMIT = 900.0
TARGET = 0.05
# Parameters, rounds and repeats of the whole round beside stock FedAvg's, with 20 clients.  A
# generation of two replicas ends in every second round.
ROUNDS = ((100_000, 14, 7), (10_000_000, 4, 4), (100_000_000, 4, 1))
ROUND_CLIENTS, ROUND_LIMIT = 20, 7200.0
# Parameters, clients, rounds and repeats: few clients if replies fill the memory.
OVERHEAD = ((100_000, 10, 12, 3), (10_000_000, 4, 6, 1), (100_000_000, 2, 3, 1))
SCALE = (
    (10_000, 10, 8),
    (10_000, 100, 8),
    (10_000, 1_000, 6),
    (10_000, 10_000, 3),
    (1_000_000, 10, 8),
    (1_000_000, 100, 6),
    (10_000_000, 10, 4),
)


@dataclass(frozen=True, eq=False)
class Cost:
    """Time, memory and disk use of one kind of federation.

    Parameters
    ----------
    rounds : for each round, seconds by part
    memory : peak, in bytes
    disk : bytes after all rounds
    """

    rounds: tuple[Mapping[str, float], ...]
    memory: int
    disk: int

    def find(self, *parts: str) -> float:
        """Return the median over rounds of the total seconds of some parts."""
        return statistics.median(
            sum(seconds.get(part, 0.0) for part in parts) for seconds in self.rounds
        )

    @property
    def total(self) -> float:
        """Return the median seconds of a round."""
        return statistics.median(sum(seconds.values()) for seconds in self.rounds)

    @property
    def own_share(self) -> float:
        """Return the median share of own code in the time of clients and wrapped strategy."""
        return statistics.median(
            sum(seconds.get(part, 0.0) for part in OWN)
            / (seconds.get(CLIENTS, 0.0) + seconds.get(WRAPPED, 0.0))
            for seconds in self.rounds
        )


def run_one(kind: str, work: str, parameters: int, clients: int, rounds: int) -> Cost:
    """Run one federation in a separate process."""
    with tempfile.TemporaryDirectory(prefix="covertfl-costs-") as folder:
        arguments = (kind, work, parameters, clients, rounds, folder)
        answer: Any = run_apart(PROCESS, arguments, limit=LIMIT)
    if answer is None:
        raise RuntimeError(f"{kind} {work} with {parameters} parameters took over {LIMIT:.0f} s")
    return Cost(tuple(answer["rounds"]), answer["memory"], answer["disk"])


def join(costs: Sequence[Cost]) -> Cost:
    """Combine repeats; memory and disk are the largest."""
    rounds = tuple(seconds for cost in costs for seconds in cost.rounds)
    return Cost(rounds, max(c.memory for c in costs), max(c.disk for c in costs))


def measure_overhead(*, quick: bool) -> tuple[list[str], bool]:
    """Measure the time of each part of a round; return the table and whether the target is met."""
    parts = {"records": (RECORDS,), "checkpoint": (CHECKPOINT,), "decoy": (DECOY,)}
    lines = [
        "| parameters | clients | their work | stock round | wrapped round | own code | "
        + " | ".join(parts)
        + " | memory: stock, covert, without records |",
        "| ---: | ---: | --- |" + " ---: |" * (4 + len(parts)),
    ]
    is_met = True
    for parameters, clients, rounds, repeats in OVERHEAD[: 1 if quick else None]:
        for work in ("training", "echo"):
            found: dict[str, list[Cost]] = {"stock": [], "covert": [], "unrecorded": []}
            for _ in range(repeats):
                for kind, costs in found.items():
                    if kind != "unrecorded" or work == "echo":
                        costs.append(run_one(kind, work, parameters, clients, rounds))
                        print_progress(f"{parameters} {work} {kind}: {costs[-1].total:.3g} s")
            stock, covert = join(found["stock"]), join(found["covert"])
            wrapped = covert.find(CLIENTS, WRAPPED)
            memory = [stock.memory, covert.memory]
            memory += [join(found["unrecorded"]).memory] if found["unrecorded"] else []
            is_met = is_met and (work == "echo" or covert.own_share < TARGET)
            cells = [
                f"{parameters:.0e}".replace("e+0", "e"),
                str(clients),
                work,
                format_seconds(stock.total),
                format_seconds(wrapped),
                f"{format_seconds(covert.find(*OWN))}, {covert.own_share:.1%}",
                *(
                    f"{format_seconds(covert.find(*names))}, {covert.find(*names) / wrapped:.0%}"
                    for names in parts.values()
                ),
                ", ".join(f"{value / 1e6:,.0f} MB" for value in memory),
            ]
            lines.append(f"| {' | '.join(cells)} |")
            print_progress(lines[-1])
            print_progress(", ".join(f"{part} {format_seconds(covert.find(part))}" for part in OWN))
    return lines, is_met


def measure_scale(*, quick: bool) -> tuple[list[str], bool]:
    """Measure time, memory and disk by clients and parameters; return the table and True."""
    lines = [
        "| parameters | clients | wrapped strategy | own code | decoy | records | checkpoint "
        "| memory: stock | covert | disk a round, at most |",
        "| ---: | ---: |" + " ---: |" * 8,
    ]
    for parameters, clients, rounds in SCALE[: 2 if quick else None]:
        stock = run_one("stock", "echo", parameters, clients, rounds)
        covert = run_one("covert", "echo", parameters, clients, rounds)
        cells = [
            f"{parameters:.0e}".replace("e+0", "e"),
            f"{clients:,}",
            format_seconds(covert.find(WRAPPED)),
            format_seconds(covert.find(*OWN)),
            format_seconds(covert.find(DECOY)),
            format_seconds(covert.find(RECORDS)),
            format_seconds(covert.find(CHECKPOINT)),
            f"{stock.memory / 1e6:,.0f} MB",
            f"{covert.memory / 1e6:,.0f} MB",
            f"{4 * parameters / 1e6:,.3g} MB",
        ]
        lines.append(f"| {' | '.join(cells)} |")
        print_progress(lines[-1])
    return lines, True


def measure_rounds(*, quick: bool, parameters: int | None = None) -> tuple[list[str], bool]:
    """Measure whole rounds of replicas beside stock ones; return the table and whether all are met.

    The ratio is the median over repeats, each of which compares rounds that followed one another.
    Clients do the same work in both; what is left is also compared without them.
    """
    lines = [
        "| parameters | clients | server | stock round | covert round | ratio, by repeat "
        f"| within {TARGET:.0%} | more beside clients' work | within {TARGET:.0%} |",
        "| ---: | ---: | --- |" + " ---: |" * 6,
    ]
    is_met = True
    sizes = [size for size in ROUNDS if parameters in (None, size[0])]
    for number, rounds, repeats in sizes[: 1 if quick else None]:
        for server, options in (("FedAvg", ()), ("built-in", ("--built-in",))):
            with tempfile.TemporaryDirectory(prefix="covertfl-costs-") as folder:
                given = ("pair", "training", number, ROUND_CLIENTS, rounds, folder)
                given += ("--repeats", repeats, *options)
                answer: Any = run_apart(PROCESS, given, limit=ROUND_LIMIT)
            if answer is None:
                raise RuntimeError(f"{number} parameters took over {ROUND_LIMIT:.0f} s")
            lines.append(describe_pair(number, server, answer["stock"], answer["replicas-2"]))
            is_met = is_met and "| no |" not in lines[-1]
            print_progress(lines[-1])
    return lines, is_met


def describe_pair(number: int, server: str, stock: Sequence[Any], covert: Sequence[Any]) -> str:
    """Return the row of one size, from the rounds of both federations by repeat."""

    def find(repeat: Any, *without: str) -> float:
        totals = [
            sum(seconds for part, seconds in parts.items() if part not in without)
            for parts in repeat
        ]
        # Blocks of one generation: it ends with more work than the other rounds.
        return statistics.median(
            statistics.fmean(totals[start : start + 2]) for start in range(0, len(totals) - 1, 2)
        )

    pairs = list(zip(stock, covert, strict=True))
    ratios = [find(own) / find(plain) for plain, own in pairs]
    more = [(find(own, CLIENTS) - find(plain, CLIENTS)) / find(plain) for plain, own in pairs]
    ratio, rest = statistics.median(ratios), statistics.median(more)
    cells = [
        f"{number:.0e}".replace("e+0", "e"),
        str(ROUND_CLIENTS),
        server,
        format_seconds(statistics.median(find(plain) for plain, _ in pairs)),
        format_seconds(statistics.median(find(own) for _, own in pairs)),
        f"{ratio:.3f} ({', '.join(f'{value:.2f}' for value in sorted(ratios))})",
        "yes" if ratio <= 1.0 + TARGET else "no",
        f"{rest:+.1%}",
        "yes" if rest <= TARGET else "no",
    ]
    return f"| {' | '.join(cells)} |"


def print_progress(text: str) -> None:
    """Print progress on standard error."""
    print(text, file=sys.stderr, flush=True)


TABLES: Mapping[str, Callable[..., tuple[list[str], bool]]] = {
    "overhead": measure_overhead,
    "scale": measure_scale,
    "rounds": measure_rounds,
}


def write_table(name: str, lines: Sequence[str], *, was_busy: bool) -> None:
    """Write a table between its markers in docs/scale.md."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    busy = " Other programs used the machine at the same time." if was_busy else ""
    made = (
        f"Measured on {datetime.date.today().isoformat()} by `python benchmarks/flower_costs.py "
        f"--only {name} --write`, {describe_machine()}.{busy}"
    )
    before, rest = PAGE.read_text("utf-8").split(begin)
    after = rest.split(end)[1]
    table = "\n".join(lines)
    write_atomically(PAGE, f"{before}{begin}\n{made}\n\n{table}\n{end}{after}")


def main() -> int:
    """Measure, print, and write if asked."""
    parser = argparse.ArgumentParser(description="measure what CovertStrategy costs")
    parser.add_argument("--only", choices=TABLES)
    parser.add_argument("--quick", action="store_true", help="small sizes only")
    parser.add_argument("--parameters", type=float, help="of `rounds`, one size only")
    parser.add_argument("--write", action="store_true", help="write docs/scale.md")
    asked = parser.parse_args()
    all_met = True
    for name in [asked.only] if asked.only else TABLES:
        was_busy = is_busy()
        sized = name == "rounds" and asked.parameters
        chosen = {"parameters": int(asked.parameters)} if sized else {}
        lines, is_met = TABLES[name](quick=asked.quick, **chosen)
        all_met = all_met and is_met
        print("\n".join(lines))
        if asked.write:
            write_table(name, lines, was_busy=was_busy)
    return 0 if all_met else 1


if __name__ == "__main__":
    sys.exit(main())
