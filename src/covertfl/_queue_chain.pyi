from typing_extensions import Buffer

def fill(
    transition: Buffer,
    success: Buffer,
    learn: Buffer,
    band: Buffer,
    num_oracle: int,
    num_levels: int,
    arrival_size: int,
    below: int,
    width: int,
    arrival_prob: float,
    keep: float,
    /,
) -> None: ...
def censor(
    band: Buffer,
    absorbed: Buffer,
    totals: Buffer,
    leaving: Buffer,
    roots: Buffer,
    num: int,
    width: int,
    below: int,
    num_totals: int,
    pivot: int,
    /,
) -> int: ...
def find_mass(
    band: Buffer,
    leaving: Buffer,
    mass: Buffer,
    num: int,
    width: int,
    below: int,
    root: int,
    pivot: int,
    /,
) -> None: ...
def find_values(
    band: Buffer,
    totals: Buffer,
    leaving: Buffer,
    averages: Buffer,
    values: Buffer,
    num: int,
    width: int,
    below: int,
    num_costs: int,
    pivot: int,
    /,
) -> None: ...
