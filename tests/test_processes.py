"""Signals end this process in order."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from covertfl.processes import handling_signals


def test_a_signal_is_handled_within_and_by_the_main_thread_alone() -> None:
    came: list[int] = []
    before = signal.getsignal(signal.SIGTERM)
    with handling_signals(came.append, signal.SIGTERM, signal.SIGHUP):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGHUP)
    assert came == [signal.SIGTERM, signal.SIGHUP]
    assert signal.getsignal(signal.SIGTERM) is before

    def stop(number: int) -> None:
        raise SystemExit(128 + number)

    with pytest.raises(SystemExit), handling_signals(stop, signal.SIGTERM):
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
    thread = threading.Thread(target=lambda: handling_signals(stop, signal.SIGTERM).__enter__())
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is before
