"""What CovertStrategy costs compared with the strategy it wraps: the tables of docs/scale.md.

Every federation runs in a separate process (`flower_process.py`); a covert and a stock one whose
whole rounds are compared share a process and take turns, so that a machine with other work slows
both.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from flower_process import CHECKPOINT, CLIENTS, DECOY, OWN, RECORDS, WRAPPED
from measurement import count_memory, format_seconds, run_apart
from section import Check, Section

PROCESS = str(Path(__file__).with_name("flower_process.py"))
LIMIT, PAIR_LIMIT = 1800.0, 7200.0
# Share of a round, seconds of own work per reply with `MANY` clients of `SMALL` parameters, bytes
# with 1,000 clients of 1e6 parameters.
TARGET, REPLY_TARGET, MEMORY_TARGET = 0.05, 1e-4, 1e9
MANY, SMALL = 10_000, 10_000
# Bytes of replies up to which a stock server is measured beside the covert one.
LARGEST_STOCK = 2e9
# Memory of two federations that take turns, in bytes for each parameter, rounded up.
PAIR_BYTES = 200
SERVERS = {"FedAvg": (), "built-in": ("--built-in",)}
# Parameters up to which both servers are measured, and own code has a target.
SMALL_MODEL = 10**5


class Size(NamedTuple):
    """A federation to measure."""

    parameters: int
    clients: int
    rounds: int
    repeats: int = 1

    @property
    def name(self) -> str:
        """Number of parameters, in short."""
        return f"{self.parameters:.0e}".replace("e+0", "e")


# A generation of two replicas ends in every second round.
ROUNDS = (Size(10**5, 20, 8, 50), Size(10**7, 20, 4, 2), Size(10**8, 20, 3))
# Few clients if their replies, which the stock server keeps, fill the memory.
OVERHEAD = (Size(10**5, 20, 12, 3), Size(10**7, 4, 6))
SCALE = (
    Size(SMALL, 10, 8),
    Size(SMALL, 100, 8),
    Size(SMALL, 1_000, 6),
    Size(SMALL, MANY, 4),
    Size(10**6, 10, 8),
    Size(10**6, 100, 6),
    Size(10**6, 1_000, 3),
    Size(10**7, 10, 4),
)


@dataclass(frozen=True, eq=False)
class Cost:
    """Time, memory and disk use of one kind of federation.

    Parameters
    ----------
    rounds : for each round, seconds by part
    memory : peak, in bytes
    """

    rounds: tuple[Mapping[str, float], ...]
    memory: int

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


def run_process(kind: str, work: str, size: Size, *options: object, limit: float = LIMIT) -> Any:
    """Run a federation in a separate process; return what it measured."""
    with tempfile.TemporaryDirectory(prefix="covertfl-costs-") as folder:
        arguments = (kind, work, size.parameters, size.clients, size.rounds, folder, *options)
        answer = run_apart(PROCESS, arguments, limit=limit)
    if answer is None:
        raise RuntimeError(f"{kind} {work} with {size.parameters} parameters took over {limit:g} s")
    print(f"{kind} {work} {size.name}, {size.clients} clients", file=sys.stderr, flush=True)
    return answer


def measure_costs(kind: str, work: str, size: Size, *options: object) -> Cost:
    """Measure all repeats of a federation; its memory is the largest."""
    answers = [run_process(kind, work, size, *options) for _ in range(size.repeats)]
    rounds = tuple(seconds for answer in answers for seconds in answer["rounds"])
    return Cost(rounds, max(answer["memory"] for answer in answers))


# --- whole rounds beside stock ones -----------------------------------------------------------


def measure_rounds(*, quick: bool) -> Section:
    """Compare whole rounds of replicas with stock rounds, in sizes that fit in the memory.

    Rounds are compared with those that followed them.  Clients do the same work in both; what is
    left is also compared without them.
    """
    sizes = ROUNDS[:1] if quick else ROUNDS
    fitting = [size for size in sizes if PAIR_BYTES * size.parameters <= count_memory()]
    rows, checks, ratios = [], [], {}
    for size in fitting:
        for server in SERVERS if size.parameters <= SMALL_MODEL else ("FedAvg",):
            options = (*SERVERS[server], "--repeats", size.repeats)
            answer = run_process("pair", "training", size, *options, limit=PAIR_LIMIT)
            pairs = list(zip(answer["stock"], answer["replicas-2"], strict=True))
            compared = [find_round(own) / find_round(plain) for plain, own in pairs]
            more = statistics.median(
                (find_round(own, CLIENTS) - find_round(plain, CLIENTS)) / find_round(plain)
                for plain, own in pairs
            )
            ratio, name = find_ratio(compared), f"{size.name}, {server}"
            rows.append((
                size.name,
                str(size.clients),
                server,
                format_seconds(statistics.median(find_round(plain) for plain, _ in pairs)),
                format_seconds(statistics.median(find_round(own) for _, own in pairs)),
                f"{ratio:.3f} ({min(compared):.2f} to {max(compared):.2f})",
                f"{more:+.1%}",
                f"{answer['memory'] / 1e9:.2g} GB",
            ))  # fmt: skip
            text = f"{name}: a covert round takes at most {1.0 + TARGET:g} times a stock round"
            checks.append(Check(f"{text} ({ratio:.3f})", ratio <= 1.0 + TARGET))
            text = f"{name}: beside the clients' work, at most {TARGET:.0%} of a round more"
            checks.append(Check(f"{text} ({more:+.1%})", more <= TARGET))
            ratios[f"stock to covert round, {name}"] = 1.0 / ratio
    return Section(
        "Flower: whole covert rounds beside stock ones",
        ("parameters", "clients", "server", "stock round", "covert round",
         "ratio (range over repeats)", "more beside clients' work", "memory of both"),
        tuple(rows), tuple(checks), ratios,
        notes=tuple(
            f"{size.name} is left out: it needs {PAIR_BYTES * size.parameters / 1e9:g} GB of memory"
            for size in sizes if size not in fitting
        ),
    )  # fmt: skip


def find_ratio(compared: Sequence[float]) -> float:
    """Return the median over repeats; two that follow one another, in both orders, are averaged."""
    pairs = [statistics.fmean(compared[start : start + 2]) for start in range(0, len(compared), 2)]
    return statistics.median(pairs)


def find_round(rounds: Sequence[Mapping[str, float]], *without: str) -> float:
    """Return the median seconds of a round, without some parts.

    Rounds are averaged over generations of two, the second of which ends with more work.
    """
    totals = [
        sum(seconds for part, seconds in parts.items() if part not in without) for parts in rounds
    ]
    pairs = [statistics.fmean(totals[start : start + 2]) for start in range(0, len(totals) - 1, 2)]
    return statistics.median(pairs or totals)


# --- parts of a round -------------------------------------------------------------------------


def measure_overhead(*, quick: bool) -> Section:
    """Measure the time of each part of a covert round."""
    parts = {"records": RECORDS, "checkpoint": CHECKPOINT, "decoy": DECOY}
    rows, checks, ratios, notes = [], [], {}, []
    for size in OVERHEAD[:1] if quick else OVERHEAD:
        for work in ("training", "echo"):
            stock = measure_costs("stock", work, size)
            covert = measure_costs("covert", work, size)
            wrapped, share = covert.find(CLIENTS, WRAPPED), covert.own_share
            shares = {part: covert.find(part) for part in parts.values()}
            rows.append((
                size.name,
                str(size.clients),
                work,
                format_seconds(stock.total),
                format_seconds(wrapped),
                f"{format_seconds(covert.find(*OWN))}, {share:.1%}",
                *(f"{format_seconds(took)}, {took / wrapped:.0%}" for took in shares.values()),
                f"{stock.memory / 1e6:,.0f} MB, {covert.memory / 1e6:,.0f} MB",
            ))  # fmt: skip
            if work == "training":
                if size.parameters <= SMALL_MODEL:
                    text = f"{size.name}: own code takes less than {TARGET:.0%} of the wrapped"
                    checks.append(Check(f"{text} round ({share:.1%})", share < TARGET))
                else:
                    notes.append(f"{size.name}: own code takes {share:.1%} of the wrapped round")
                ratios[f"wrapped round to own code, {size.name}"] = 1.0 / share
    return Section(
        "Flower: own code of a covert round",
        ("parameters", "clients", "their work", "stock round", "wrapped round", "own code", *parts,
         "memory: stock, covert"),
        tuple(rows), tuple(checks), ratios, notes=tuple(notes),
    )  # fmt: skip


# --- by clients and parameters ----------------------------------------------------------------


def measure_scale(*, quick: bool) -> Section:
    """Measure processor time and memory by clients and parameters, with clients that echo."""
    rows, checks, ratios = [], [], {}
    for size in SCALE[:1] if quick else SCALE:
        # The stock server keeps all replies, and some of them twice.
        has_room = 4 * size.parameters * size.clients < LARGEST_STOCK
        stock = measure_costs("stock", "echo", size, "--processor-time") if has_room else None
        covert = measure_costs("covert", "echo", size, "--processor-time")
        own = covert.find(*OWN, RECORDS, CHECKPOINT) / size.clients
        rows.append((
            size.name,
            f"{size.clients:,}",
            "" if stock is None else format_seconds(stock.find(WRAPPED)),
            *(format_seconds(covert.find(*names))
              for names in ((WRAPPED,), OWN, (DECOY,), (RECORDS, CHECKPOINT))),
            format_seconds(own),
            "" if stock is None else f"{stock.memory / 1e6:,.0f} MB",
            f"{covert.memory / 1e6:,.0f} MB",
        ))  # fmt: skip
        name = f"{size.clients:,} clients of {size.name}"
        if size[:2] == (SMALL, MANY):
            text = f"{name}: own work per reply under {format_seconds(REPLY_TARGET)}"
            checks.append(Check(f"{text} ({format_seconds(own)})", own < REPLY_TARGET))
            if stock is not None:
                ratios[f"FedAvg to own work, {name}"] = stock.find(WRAPPED) / size.clients / own
        if size[:2] == (10**6, 1_000):
            text = f"{name}: the process takes less than {MEMORY_TARGET / 1e9:g} GB"
            found = f"{covert.memory / 1e9:.2f} GB"
            checks.append(Check(f"{text} ({found})", covert.memory < MEMORY_TARGET))
            replies = 4 * size.parameters * size.clients
            ratios[f"all replies to the process, {name}"] = replies / covert.memory
    return Section(
        "Flower: many clients",
        ("parameters", "clients", "stock strategy", "wrapped strategy", "own code", "decoy",
         "records and checkpoint", "own work per reply", "memory: stock", "covert"),
        tuple(rows), tuple(checks), ratios,
    )  # fmt: skip
