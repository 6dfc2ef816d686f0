"""Exporting the true model of a run: weights, and all that is needed to use them, in one file.

A model card in Markdown is written beside it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covertfl.errors import InvalidInput
from covertfl.files.disk import read_bytes, write_atomically
from covertfl.files.text import read_object
from covertfl.kernels.job import Layout, Vector
from covertfl.models.contents import ModelContents, pack_model
from covertfl.runs.checkpoint import STATE, WRONG_CONTENT, Checkpoint, read_checkpoint, read_state
from covertfl.runs.files import SETTINGS, SUMMARY, find_runs, read_summary
from covertfl.runs.folder import MAP, MODEL, require_readable
from covertfl.tasks.public_map import PublicMap
from covertfl.tasks.task import Standardisation

SUFFIX = ".safetensors"
VERSIONS, VERSION_FACTS = "versions", "version.json"
MOST_NAMED = 20  # versions that a message lists
FORMULA = "(x - standardisation.mean) / standardisation.deviation"
TITLE = "# Model card: "


@dataclass(frozen=True)
class ExportedModel:
    """A model that was written to a file, after how many rounds and updates of the run.

    Parameters
    ----------
    output, card : the file of the model, and its model card
    inputs : "public_map" if inputs pass the map in the file before the model, None if they do not
    """

    output: Path
    card: Path
    rounds: int
    updates_done: int
    inputs: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {**asdict(self), "output": str(self.output), "card": str(self.card)}


def find_version(folder: Path, number: int) -> Path:
    """Return the folder of a version that a service has released."""
    return folder / VERSIONS / str(number)


def export_model(
    path: str | os.PathLike[str], output: str | os.PathLike[str], *, version: int | None = None
) -> ExportedModel:
    """Write the true model of a run to a file and its model card beside it, for their owner only.

    The weights are read from the checkpoint in the run's folder `path`, never from what clients
    were sent; with `version` from that version of a service.  `output` must end in .safetensors;
    the card has the same name with .md.

    Raises
    ------
    InvalidInput
        if the folder holds no run with a complete round, or the name of a file cannot be used
    """
    target, card = _check_output(Path(output))
    require_readable(path)
    checkpoint, metrics = _read_trained(Path(path), version)
    contents = _collect(Path(path), checkpoint, metrics)
    try:
        text = format_card(contents.facts, target)
    except WRONG_CONTENT as error:
        raise InvalidInput(f"{Path(path) / MODEL} does not describe a model: {error}") from error
    write_atomically(target, pack_model(contents), mode=0o600)
    write_atomically(card, text, mode=0o600)
    inputs = None if contents.public_map is None else "public_map"
    return ExportedModel(target, card, checkpoint.round, checkpoint.facts["updates"], inputs)


def _read_trained(path: Path, version: int | None) -> tuple[Checkpoint, dict[str, Any]]:
    """Return the state of a run, or of one of its versions, and the results that belong to it."""
    if version is None:
        found = read_checkpoint(path)
        if found is None or found.round == 0:
            raise _refuse_folder(path)
        return found, _read_metrics(path)
    place = find_version(path, version)
    checkpoint = read_state(place / STATE) if (place / VERSION_FACTS).exists() else None
    if checkpoint is None:
        there = sorted(int(file.parent.name) for file in path.glob(f"{VERSIONS}/*/{VERSION_FACTS}"))
        known = ", ".join(map(str, there[-MOST_NAMED:])) or "none"
        known = f"..., {known}" if len(there) > MOST_NAMED else known
        raise InvalidInput(
            f"{path} has no version {version}: it was not released, or was withdrawn by a purge; "
            f"versions there are {known}"
        )
    metrics = read_object(place / VERSION_FACTS, "a version").get("metrics", {})
    return checkpoint, {f"learner_{key}": value for key, value in metrics.items()}


def _check_output(output: Path) -> tuple[Path, Path]:
    """Return the paths of the model and its card; refuse to replace a file that is no card."""
    if output.suffix != SUFFIX:
        raise InvalidInput(
            f"{output} must end in {SUFFIX}, the format that models are exported in, got "
            f"{output.suffix or 'nothing'}; docs/models.md shows how to load it in PyTorch"
        )
    card = output.with_suffix(".md")
    if card.exists() and not read_bytes(card, "a model card").startswith(TITLE.encode()):
        raise InvalidInput(
            f"{card} exists and is no model card, which would be written there: choose another name"
        )
    return output, card


def _refuse_folder(path: Path) -> InvalidInput:
    """Return the error for a folder that holds no run with a complete round itself."""
    missing = InvalidInput(f"{path} holds no run with a complete round")
    try:
        runs = [run for run in find_runs(path) if run != path]
    except InvalidInput:
        return missing
    if not runs:
        return missing
    scores = {run: _read_accuracy(run) for run in runs}
    best = max(runs, key=lambda run: scores[run])
    why = f", whose validation accuracy is the highest ({scores[best]:.4f})"
    return InvalidInput(
        f"{path} holds {len(runs)} runs, {runs[0].name} to {runs[-1].name}, each with a model of "
        f"its own: export one of them, such as {best}{why if scores[best] >= 0.0 else ''}"
    )


def _read_accuracy(run: Path) -> float:
    """Return the validation accuracy of a run, -1 if it is not known."""
    accuracy = read_summary(run).learner_accuracy if (run / SUMMARY).exists() else None
    return -1.0 if accuracy is None else accuracy


def _collect(path: Path, checkpoint: Checkpoint, metrics: Mapping[str, Any]) -> ModelContents:
    """Return what is exported of the run in a folder."""
    weights = _split_weights(checkpoint, os.fspath(path))
    described, public_map = _read_description(path), None
    if described.get("public_map") is not None:
        public_map = PublicMap.load(path / MAP)
    found = _make_standardisation(path, described.get("standardisation"))
    facts = {
        **described,
        "standardisation": None if found is None else FORMULA,
        "rounds": checkpoint.round,
        "updates_done": checkpoint.facts["updates"],
        "metrics": dict(metrics),
        "settings_sha256": hashlib.sha256(read_bytes(path / SETTINGS, "settings")).hexdigest(),
    }
    return ModelContents(facts, weights, found, public_map)


def _split_weights(checkpoint: Checkpoint, name: str) -> dict[str, Vector]:
    """Return the true weights of the run in the folder `name`, by parameter."""
    try:
        parameters = {str(key): tuple(shape) for key, shape in checkpoint.facts["parameters"]}
        layout = Layout(tuple(parameters), tuple(parameters.values()))
        parts = layout.split(checkpoint.arrays["true"])
    except (*WRONG_CONTENT, InvalidInput) as error:
        raise InvalidInput(f"{name}: the checkpoint does not hold a model: {error}") from error
    if not parts or type(checkpoint.facts.get("updates")) is not int:
        raise InvalidInput(f"{name}: the checkpoint does not hold a model: parameters or updates")
    return dict(parts)


def _read_description(path: Path) -> dict[str, Any]:
    """Return what a run's folder says about its model."""
    return read_object(path / MODEL, "the description of a model")


def _make_standardisation(path: Path, found: Mapping[str, Any] | None) -> Standardisation | None:
    try:
        if found is None:
            return None
        mean, deviation = (np.array(found[key], dtype=np.float64) for key in ("mean", "deviation"))
    except (TypeError, ValueError, LookupError) as error:
        raise InvalidInput(f"{path / MODEL}: standardisation is not valid: {error}") from error
    return Standardisation(mean, deviation)


def _read_metrics(path: Path) -> dict[str, Any]:
    """Return the learner's results on the validation set; none before a run has ended."""
    if not (path / SUMMARY).exists():
        return {}
    summary = read_summary(path).to_dict()
    found = {key: value for key, value in summary.items() if key.startswith("learner_")}
    return {key: value for key, value in found.items() if value is not None}


def format_card(facts: Mapping[str, Any], model: Path) -> str:
    """Return the model card of an exported model, from its facts (`contents`)."""
    parts = [
        f"{TITLE}{model.name}",
        "Trained by federated learning with covertfl, which hides the model from the clients.  "
        "Keep this file and the model off every channel that clients can read.",
        *_describe_use(facts, model),
        *_section("Inputs", _describe_inputs(facts)),
        *_section("Output", _describe_output(facts)),
        *_section("Results", _describe_results(facts)),
        *_describe_layers(facts),
    ]
    return "\n\n".join(parts) + "\n"


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return [f"## {title}", "\n".join(f"- {line}" for line in lines)] if lines else []


def _describe_use(facts: Mapping[str, Any], model: Path) -> list[str]:
    if "inputs" not in facts:
        return []
    has_texts = facts["inputs"]["encoder"] is not None
    file, name, argument = (
        ("texts.csv", "texts", "a list of texts")
        if has_texts
        else ("features.npz", "features", "an array of inputs")
    )
    code = (
        f"covertfl predict {model.name} {file} -o scored.csv\n\n"
        f'cf.load_model("{model.name}").predict({name})  # in Python: {argument}'
    )
    return ["## Use", f"```\n{code}\n```"]


def _describe_inputs(facts: Mapping[str, Any]) -> list[str]:
    inputs = facts.get("inputs")
    if inputs is None:
        return []
    shape = " x ".join(str(size) for size in inputs["shape"])
    lines = [f"{inputs['meaning']}; {shape} numbers"]
    encoder = inputs["encoder"]
    if encoder is not None:
        lines.append(
            f"encoder: {encoder['name']} {encoder['version']}, {encoder['dimensions']} dimensions, "
            "after cleaning"
        )
        if encoder["text_column"] is not None:
            lines.append(f"trained on the column `{encoder['text_column']}`")
    if facts["standardisation"] is not None:
        lines.append(f"standardised: x -> {facts['standardisation']}, tensors in the file")
    if facts["public_map"] is not None:
        lines.append(
            "then mapped: x -> ((x - public_map.mean) @ public_map.basis) * public_map.scale, "
            "tensors in the file"
        )
    return lines


def _describe_output(facts: Mapping[str, Any]) -> list[str]:
    output = facts.get("output")
    if output is None:
        return []
    lines = [output["meaning"]]
    if facts["classes"]:
        lines.append("classes, in order: " + ", ".join(f"`{name}`" for name in facts["classes"]))
    if output["threshold"] is not None:
        lines.append(f"the second class is named above a probability of {output['threshold']}")
    return lines


def _describe_results(facts: Mapping[str, Any]) -> list[str]:
    metrics = [
        f"{name.removeprefix('learner_').replace('_', ' ')} {_format_number(value)}"
        for name, value in facts["metrics"].items()
    ]
    measured = (
        f"on the validation set: {', '.join(metrics)}" if metrics else "the run has not ended"
    )
    return [
        measured,
        f"task `{facts['task']}`, {facts['rounds']} rounds, {facts['updates_done']} updates",
        f"settings of the run (SHA-256 of its run.toml): `{facts['settings_sha256']}`",
    ]


def _format_number(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _describe_layers(facts: Mapping[str, Any]) -> list[str]:
    architecture = facts.get("architecture")
    if architecture is None:
        return []
    rows = [
        f"| `{layer['name']}` | {layer['type']} | {_format_arguments(layer)} |"
        for layer in architecture.get("layers", ())
    ]
    if not rows:
        text = architecture.get("text", "")
        return ["## Architecture", f"`{architecture['type']}`", f"```\n{text}\n```"]
    table = ["| layer | type | arguments |", "| --- | --- | --- |", *rows]
    return ["## Architecture", "\n".join(table)]


def _format_arguments(layer: Mapping[str, Any]) -> str:
    arguments = layer.get("arguments", {})
    return ", ".join(f"{name} {value}" for name, value in arguments.items())
