"""What a user's own code prints, logs and warns of on the server: nothing that anybody can read.

The SuperLink keeps what a server app prints, and everyone with access to its control interface can
read it.  A wrapped strategy that prints where it moved, or a function that prints the accuracy of
the true arrays, would tell the action of every round.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import numpy as np


@contextmanager
def silenced() -> Iterator[None]:
    """Discard what Python code writes to standard output and error, logs and warns of."""
    nowhere, asked = io.StringIO(), logging.Logger.isEnabledFor
    # `logging.disable` does the same, and empties the cache of every logger each time.
    setattr(logging.Logger, "isEnabledFor", _refuse)  # noqa: B010
    try:
        with (
            redirect_stdout(nowhere),
            redirect_stderr(nowhere),
            warnings.catch_warnings(),
            np.errstate(all="ignore"),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        setattr(logging.Logger, "isEnabledFor", asked)  # noqa: B010


def _refuse(_logger: logging.Logger, _level: int) -> bool:
    """Return False: no level is enabled."""
    return False
