import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float32]
_Doubles = npt.NDArray[np.float64]
_Integers = npt.NDArray[np.uint64]

def add(
    parts: list[_Floats],
    weights: _Doubles,
    high: _Doubles,
    low: _Doubles,
    left: _Doubles,
    step: int,
    /,
) -> int: ...
def spill(left: _Doubles, wide: _Integers, /) -> None: ...
def settle(wide: _Integers, high: _Doubles, low: _Doubles, /) -> None: ...
def divide(high: _Doubles, low: _Doubles, total: float, mean: _Floats, /) -> None: ...
