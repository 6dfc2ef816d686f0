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
    disabled, nowhere = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.CRITICAL)
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
        logging.disable(disabled)
