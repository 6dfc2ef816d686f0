"""The folder of a `CovertStrategy`'s run: opened or resumed, and the state in which it starts."""

from __future__ import annotations

from flwr.app import ArrayRecord

from covertfl.engines.flower.array_form import ArrayForm
from covertfl.engines.flower.responder import PENDING
from covertfl.engines.flower.run_settings import store_seed
from covertfl.engines.flower.strategy_settings import StrategySettings
from covertfl.kernels.weights import Vector
from covertfl.runs.checkpoint import Checkpoint
from covertfl.runs.federation import Federation, RunState, start_run, unpack_state
from covertfl.runs.folder import RunFolder
from covertfl.runs.lines import read_lines
from covertfl.runs.run_file import format_run, list_versions
from covertfl.runs.settings import RunSettings
from covertfl.seeding import Stream, draw_seed


def open_folder(
    given: StrategySettings, settings: RunSettings, folder: RunFolder
) -> Checkpoint | None:
    """Create the folder of a run or resume it, and store the secret seed in it."""
    text, checkpoint = format_run(settings, list_versions()), None
    if given.resume and (folder.path / "checkpoint").exists():
        checkpoint = folder.resume(text)
    else:
        folder.create(text, force=given.force)
        (folder.path / PENDING).unlink(missing_ok=True)
    store_seed(settings, folder.path, is_resumed=checkpoint is not None)
    return checkpoint


def find_state(
    given: StrategySettings,
    federation: Federation,
    form: ArrayForm,
    initial_arrays: ArrayRecord | None,
    checkpoint: Checkpoint | None,
) -> RunState:
    """Return the state in which a run starts or is resumed."""
    if checkpoint is not None:
        return unpack_state(checkpoint, read_lines(given.folder / "private" / "rounds.jsonl"))
    if initial_arrays is None:
        return start_run(federation)
    true, clients = form.flatten(initial_arrays), federation.responder
    decoys: list[Vector] = [true] * clients.num_decoys
    if given.decoy_start == "fresh":
        seed = federation.settings.hidden_seed
        decoys = [
            clients.first_weights(draw_seed(seed, Stream.INITIAL, number))
            for number in range(1, 1 + clients.num_decoys)
        ]
    return start_run(federation, [true, *decoys])
