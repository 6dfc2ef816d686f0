"""Starting and ending a service: its folder, its HTTP interface and its rounds."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from covertfl.errors import CovertflError, InvalidInput, Missing
from covertfl.files.token import make_token
from covertfl.processes import handling_signals
from covertfl.runs.folder import TOKEN, report_errors
from covertfl.runs.settings import RunSettings
from covertfl.runs.train import OnRound, RunProgress, check_folder, require_torch
from covertfl.service.client import remember_service, write_address
from covertfl.service.http_process import HttpProcess, check_listen
from covertfl.service.loop import OnStart, as_service, run_simulated
from covertfl.service.schema import StorageFull
from covertfl.service.store import Store

# Seconds between two attempts to go on when the disk is full.
PAUSE = 5.0
Announce = Callable[[str], None]
# Who runs the client apps of a service on Flower, as `engines.flower.deployment.run.NodeUser`.
ChooseUser = Callable[[RunSettings, Path], str | None]


def serve(
    settings: RunSettings,
    folder: Path,
    *,
    api_only: bool = False,
    announce: Announce | None = None,
    on_round: OnRound | None = None,
    choose_user: ChooseUser | None = None,
) -> None:
    """Run a service until it is told to end by SIGTERM, SIGINT or SIGHUP.

    It ends after the round that is under way.  A service that was killed goes on where it was.
    While the disk is full, it waits.

    Parameters
    ----------
    settings : of a run file with a queue and a section [service]
    folder : of the service; made if there is none
    api_only : only answer requests; a server app elsewhere plays the rounds in the same folder
    announce : called with a sentence about each step
    on_round : called with the progress after every round
    choose_user : returns who runs the client apps of a service on Flower

    Raises
    ------
    InvalidInput
        if the settings describe no service, or the folder is another's or in use
    """
    require_torch()
    settings, say = as_service(settings), announce or (lambda _sentence: None)
    http = _HttpInterface(settings, folder, say)
    check_folder(settings, folder, resume=(folder / "checkpoint").exists(), force=False)
    ending = threading.Event()

    def check(progress: RunProgress) -> None:
        http.check()
        if on_round is not None:
            on_round(progress)

    def end(number: int) -> None:
        """End the service after its round; a second Ctrl-C ends it at once."""
        if number == signal.SIGINT and ending.is_set():
            raise KeyboardInterrupt
        ending.set()

    signals = handling_signals(end, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    with signals, holding(folder), contextlib.closing(http):
        if api_only:
            Store(folder, creates=True).close()
            http.open()
            while not ending.wait(1.0):
                http.check()
        else:
            play = _choose_engine(settings, folder, ending, choose_user)
            _keep_playing(partial(play, http.open, check), folder, ending, say)
    say("the service has ended")


class _HttpInterface:
    """The HTTP interface of a service, which is opened once its database is there."""

    def __init__(self, settings: RunSettings, folder: Path, say: Announce) -> None:
        section = settings.sections.service
        assert section is not None
        paths = (section.certificate, section.key)
        self._files = tuple(None if path is None else Path(path) for path in paths)
        self._place = check_listen(section.listen, *self._files)
        self._folder, self._say = folder, say
        self._process: HttpProcess | None = None

    def open(self) -> None:
        """Answer requests from now on."""
        if self._process is not None:
            return
        certificate, key = self._files
        self._process = HttpProcess(self._folder, *self._place, certificate=certificate, key=key)
        address, token = self._process.address, self._folder / TOKEN
        write_address(self._folder, address)
        remember_service(self._folder)
        self._say(f"the service answers at {address}; its token is in {token}")

    def check(self) -> None:
        """Raise InvalidInput if it has ended."""
        if self._process is not None:
            self._process.check()

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.close()


Play = Callable[[OnStart, OnRound], object]


def _choose_engine(
    settings: RunSettings, folder: Path, ending: threading.Event, choose_user: ChooseUser | None
) -> Play:
    """Return what plays the rounds of a service until it is to end."""
    if settings.sections.engine.kind == "simulated":
        return partial(run_simulated, settings, folder, ending)
    try:
        from covertfl.service.flower import run_on_flower
    except ModuleNotFoundError as error:
        raise Missing("a service on Flower needs it: pip install 'covertfl[flower]'") from error
    return partial(run_on_flower, settings, folder, ending, node_user=choose_user)


def _keep_playing(
    play: Callable[[], object], folder: Path, ending: threading.Event, say: Announce
) -> None:
    """Play rounds until the service is to end; wait as long as the disk is full."""
    is_full = False
    while True:
        try:
            play()
            return
        except CovertflError as error:
            if not _is_full(error):
                raise
            if not is_full:
                say(f"waiting for room on the disk: {error}")
            is_full = True
            with contextlib.suppress(CovertflError), Store(folder) as store:
                store.keep_fact("paused", f"waiting for room on the disk: {error}")
        if ending.wait(PAUSE):
            return


def _is_full(error: BaseException | None) -> bool:
    """Return whether an error, or what has caused it, is that of a full disk."""
    while error is not None:
        is_room = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        if is_room or isinstance(error, StorageFull):
            return True
        error = error.__cause__
    return False


@contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Keep other services from using a folder, which is made with a token if there is none.

    Raises
    ------
    InvalidInput
        if another one uses it
    """
    with report_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    make_token(folder / TOKEN)
    handle = os.open(folder / TOKEN, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InvalidInput(f"{folder} is in use by another service") from error
        yield
    finally:
        os.close(handle)
