"""torch's global generator, which modules draw their first weights and dropout from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import RLock

import torch

_LOCK = RLock()


@contextmanager
def isolate_generator(devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """Let a block seed and use torch's generator, which is left unchanged.

    There is one generator for all threads, so that only one thread at a time is in such a block.

    Parameters
    ----------
    devices : GPUs whose generators the block uses, too
    """
    with _LOCK, torch.random.fork_rng(devices=list(devices)):
        yield
