import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float64]

def fill(
    transition: _Floats,
    success: _Floats,
    learn: _Floats,
    arrived: npt.NDArray[np.int64],
    arrival_probs: _Floats,
    band: _Floats,
    num_oracle: int,
    num_levels: int,
    below: int,
    width: int,
    keep: float,
    /,
) -> None: ...
def censor(
    band: _Floats,
    absorbed: _Floats,
    totals: _Floats,
    leaving: _Floats,
    roots: npt.NDArray[np.int64],
    num: int,
    width: int,
    below: int,
    num_totals: int,
    pivot: int,
    /,
) -> int: ...
def find_mass(
    band: _Floats,
    leaving: _Floats,
    mass: _Floats,
    num: int,
    width: int,
    below: int,
    root: int,
    pivot: int,
    /,
) -> None: ...
def find_values(
    band: _Floats,
    totals: _Floats,
    leaving: _Floats,
    averages: _Floats,
    values: _Floats,
    num: int,
    width: int,
    below: int,
    num_costs: int,
    pivot: int,
    /,
) -> None: ...
