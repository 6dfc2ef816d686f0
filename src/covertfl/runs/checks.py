"""Checks of a run file: keys that need or exclude each other, or do not fit the problem."""

from __future__ import annotations

from itertools import pairwise

from covertfl.decision.problem import FiniteHorizon, Problem
from covertfl.decision.states import OracleStates
from covertfl.decoys.registry import DECOY_PLUG_INS, REPLICA
from covertfl.decoys.replica import SIZES
from covertfl.errors import InvalidInput
from covertfl.files.toml import shorten
from covertfl.runs.settings import FederationSection, RunSections
from covertfl.tasks.registry import TASK_PLUG_INS


def check_sections(sections: RunSections, name: str) -> None:
    """Raise InvalidInput if a name is unknown, or keys that need or exclude each other disagree."""
    TASK_PLUG_INS.check(sections.task, f"{name}: task")
    _check_policy(sections, name)
    optimizer = sections.federation.optimizer
    if optimizer.momentum > 0.0 and optimizer.name != "sgd":
        raise InvalidInput(
            f"{name}: [federation] optimizer.momentum needs name = sgd, got name = {optimizer.name}"
        )
    if sections.task == "embeddings" and sections.data.path is None:
        raise InvalidInput(f"{name}: [data] path is needed with task = embeddings, an .npz file")
    if sections.data.public_class_share is not None and sections.data.public_classes is None:
        raise InvalidInput(
            f"{name}: [data] public_class_share needs public_classes, which is not set"
        )
    DECOY_PLUG_INS.check(sections.decoy.kind, f"{name}: [decoy] kind")
    if sections.federation.mark and sections.engine.kind != "simulated":
        raise InvalidInput(f"{name}: [federation] mark needs [engine] kind = simulated")
    if sections.engine.round_seconds is not None and sections.engine.kind == "simulated":
        raise InvalidInput(
            f"{name}: [engine] round_seconds needs kind = flower, got kind = simulated, whose "
            "rounds take no time that anybody could measure"
        )
    check_exchangeable(sections, name)


def check_participation(sections: RunSections, states: OracleStates | None, name: str) -> None:
    """Raise InvalidInput if the federation does not match the states of its problem."""
    clients, participation = sections.federation.clients, sections.federation.participation
    if sections.engine.kind == "flower":
        _check_flower(sections, states, name)
    if max(participation) > clients:
        raise InvalidInput(
            f"{name}: [federation] participation must be at most clients = {clients}, "
            f"got {max(participation)}"
        )
    _check_quorum(sections, name)
    if states is None:
        if participation != sorted(participation):
            raise InvalidInput(
                f"{name}: [federation] participation must not decrease from one oracle state to "
                f"the next, got {shorten(participation)}"
            )
        return
    if len(participation) != states.num_states:
        raise InvalidInput(
            f"{name}: [federation] participation must have {states.num_states} numbers, one for "
            f"each oracle state, got {len(participation)}"
        )
    default = FederationSection.model_fields["min_share"].default
    if states.min_examples is not None and sections.federation.min_share != default:
        raise InvalidInput(
            f"{name}: [federation] min_share and [states] min_examples exclude each other: give "
            "one of the two"
        )
    try:
        states.check_participation(participation)
    except InvalidInput as error:
        raise InvalidInput(f"{name}: [federation] {error}") from error


def _check_quorum(sections: RunSections, name: str) -> None:
    """Raise InvalidInput if no round can have as many replies as it needs."""
    section = sections.federation
    if section.min_replies is None:
        return
    most = max(section.participation) if section.log is None else section.clients
    if section.min_replies > most:
        raise InvalidInput(
            f"{name}: [federation] min_replies must be at most {most}, the clients of the best "
            f"oracle state, got {section.min_replies}"
        )


def _check_flower(sections: RunSections, states: OracleStates | None, name: str) -> None:
    participation, mode = sections.federation.participation, sections.engine.mode
    if states is None and not all(after > before for before, after in pairwise(participation)):
        raise InvalidInput(
            f"{name}: [federation] participation must increase from one oracle state to the "
            "next with [engine] kind = flower, because the state is inferred from the number "
            f"of clients present, got {shorten(participation)}"
        )
    if mode != "deployment":
        return
    if states is not None and not states.by_clients:
        raise InvalidInput(
            f"{name}: [states] column must be clients with [engine] mode = deployment, because the "
            f"state is inferred from the number of clients present, got {shorten(states.column)}"
        )
    if sections.federation.log is not None:
        raise InvalidInput(
            f"{name}: [federation] log is replayed by simulated clients and cannot be used with "
            "[engine] mode = deployment"
        )


def _check_policy(sections: RunSections, name: str) -> None:
    policy = sections.policy
    if policy.kind == "file" and policy.path is None:
        raise InvalidInput(f"{name}: [policy] kind = file needs path, a policy file")
    if policy.kind != "file" and policy.path is not None:
        raise InvalidInput(f"{name}: [policy] path needs kind = file, got kind = {policy.kind}")
    if policy.kind != "spga" and policy.refresh is not None:
        raise InvalidInput(f"{name}: [policy] refresh needs kind = spga, got kind = {policy.kind}")
    if policy.refresh is None and policy.live is not None:
        raise InvalidInput(f"{name}: [policy] live needs refresh, the rounds between two refreshes")


def check_problem(sections: RunSections, problem: Problem, name: str) -> None:
    """Raise InvalidInput if a key does not fit the kind of problem."""
    if isinstance(problem, FiniteHorizon):
        if sections.arrivals is not None:
            raise InvalidInput(f"{name}: arrivals needs a [queue], got a [horizon]")
        return
    if sections.updates is not None:
        raise InvalidInput(f"{name}: updates needs a [horizon], got a [queue]")
    if sections.policy.kind in ("random", "minority"):
        raise InvalidInput(
            f"{name}: [policy] kind = {sections.policy.kind} needs a problem with [horizon], "
            "got [queue]"
        )


def check_exchangeable(sections: RunSections, name: str) -> None:
    """Raise InvalidInput if exchangeable trajectories and replicas are not together, and alone."""
    policy, decoy = sections.policy, sections.decoy
    if policy.kind != "exchangeable":
        _refuse_exchangeable_keys(sections, name)
        return
    if policy.trajectories not in SIZES:
        allowed = ", ".join(map(str, SIZES))
        raise InvalidInput(
            f"{name}: [policy] trajectories must be one of {allowed}, got {policy.trajectories}"
        )
    if decoy.kind != REPLICA:
        raise InvalidInput(
            f"{name}: [decoy] kind must be {REPLICA} with [policy] kind = exchangeable, "
            f"got {decoy.kind}"
        )
    if decoy.gated is False:
        raise InvalidInput(
            f"{name}: [decoy] gated = false cannot be used with [policy] kind = exchangeable: a "
            "decoy that moves when its query fails is told apart"
        )


def _refuse_exchangeable_keys(sections: RunSections, name: str) -> None:
    """Raise InvalidInput for keys that only exchangeable runs have."""
    kind = sections.policy.kind
    given = {
        "[policy] trajectories": sections.policy.trajectories,
        "[decoy] pivot": sections.decoy.pivot,
        "[federation] secret": sections.federation.secret,
        "[decoy] kind = replica": sections.decoy.kind == REPLICA or None,
    }
    for key, value in given.items():
        if value is not None:
            raise InvalidInput(
                f"{name}: {key} needs [policy] kind = exchangeable, got kind = {kind}"
            )
