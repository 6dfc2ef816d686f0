import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float64]

def induct(
    transition: _Floats,
    success: _Floats,
    privacy: _Floats,
    values: _Floats,
    learn: npt.NDArray[np.bool_],
    rounds: int,
    num_oracle: int,
    num_levels: int,
    num_kept: int,
    tolerance: float,
    per_round: float,
    is_convex: bool,
    /,
) -> None: ...
