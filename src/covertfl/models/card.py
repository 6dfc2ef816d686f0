"""The model card of an exported model, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TITLE = "# Model card: "


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
