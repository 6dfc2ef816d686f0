import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float32]
_Doubles = npt.NDArray[np.float64]
_Integers = npt.NDArray[np.int64]
_Job = tuple[
    _Floats, _Floats, npt.NDArray[np.generic], _Integers, npt.NDArray[np.float32], int, int, int
]

def run(
    blocks: _Integers,
    rates: _Doubles,
    source: _Integers,
    options: _Doubles,
    is_binary: int,
    jobs: list[_Job],
    counter: _Integers,
    widest: int,
    /,
) -> None: ...
def predict(
    blocks: _Integers,
    rates: _Doubles,
    source: _Integers,
    weights: _Floats,
    features: _Floats,
    outputs: _Floats,
    counter: _Integers,
    widest: int,
    /,
) -> None: ...
