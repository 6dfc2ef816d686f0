"""A toy scheme: clients are sent zeros, and the model stays where it began."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from covertfl.decision.policy import GreedyPolicy, Observation
from covertfl.files.text import Section
from covertfl.kernels.job import Vector
from covertfl.schemes.replies import Aggregator, Reply
from covertfl.schemes.scheme import (
    Learning,
    Outcome,
    Packed,
    PublicFacts,
    Query,
    Scheme,
    Setup,
    Step,
)

UNWANTED = 2  # client whose replies are refused
Models = tuple[Vector, Vector]  # the owner's, and zeros


class StillSection(Section):
    """`[still]`: a number that changes nothing."""

    depth: int = 0


@dataclass(frozen=True, eq=False)
class Still(Scheme):
    """Its state is the owner's model, which no client ever sees, and what all of them see."""

    setup: Setup
    sections: ClassVar[Mapping[str, type[Section]]] = {"still": StillSection}

    @classmethod
    def make(cls, setup: Setup) -> Self:
        return cls(setup)

    def start(
        self, aggregator: Aggregator, first: Vector | None = None, *, is_fresh: bool = False
    ) -> Models:
        own = self.setup.task.draw_weights(self.setup.hidden_seed) if first is None else first
        return own, np.zeros_like(own)

    def ask(self, state: Models, round_number: int, seen: Observation) -> Query:
        return Query(round_number, seen, state[1], trajectory=1, learn_prob=0.0)

    def shown(self, state: Models) -> tuple[Vector, ...]:
        return state

    def models(self, state: Models) -> tuple[Vector, ...]:
        return state

    def learn(
        self, state: Models, query: Query, outcome: Outcome, aggregator: Aggregator
    ) -> Learning:
        return Step(state, outcome.accepted)
        yield

    def fault(self, query: Query, reply: Reply) -> str | None:
        return super().fault(query, reply) or ("unwanted" if reply.client == UNWANTED else None)

    def pack(self, state: Models) -> Packed:
        return Packed({"true": state[0]})

    def unpack(self, packed: Packed) -> Models:
        return packed.arrays["true"], np.zeros_like(packed.arrays["true"])

    def describe(self) -> PublicFacts:
        return PublicFacts(GreedyPolicy())
