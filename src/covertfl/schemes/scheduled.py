"""The paper's scheme: a policy decides in each round whether to learn or to obfuscate.

A learning query sends the true weights, an obfuscating one those of a decoy, which moves by a rule
of its own (`decoys`).  Of the two trajectories at most the one that was queried moves: the coupled
updates, equation (1) of the paper (`Scheduled.learn`).

Where clients could measure how long the server works, the moves of both are computed in every round
and the one that is not needed is discarded.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal, Self

import numpy as np

from covertfl.decision.policy import Observation, Policy
from covertfl.decision.problem import FiniteHorizon, Problem, QueueProblem
from covertfl.files.text import Section
from covertfl.kernels.job import Float32Array, LocalJob, Vector
from covertfl.schemes.decoys.decoy import Decoy, DecoyView
from covertfl.schemes.decoys.registry import DECOY_PLUG_INS, DECOYS, make_decoy
from covertfl.schemes.policies import (
    WINDOW,
    LiveState,
    PolicyKind,
    PolicySection,
    RunPolicy,
    check_policy,
    check_policy_states,
    expect_policy,
    fit_live,
    is_due,
    make_live_policy,
    make_run_policy,
    refresh_live,
)
from covertfl.schemes.replies import Aggregator, ServerMemory, SiftedReplies, average_replies
from covertfl.schemes.scheme import (
    REFIT_ROUNDS,
    Event,
    History,
    Jobs,
    Learning,
    Outcome,
    Packed,
    Parts,
    PolicyInForce,
    PublicFacts,
    Query,
    Reading,
    Restart,
    Rollback,
    Scheme,
    Setup,
    Step,
    Variant,
    only_part,
    pack_memory,
    read_count,
    unpack_memory,
)
from covertfl.seeding import Stream, draw_seed, make_generator

# Learning queries, and moves of the true weights, that a matched decoy assumes before the first.
FIRST_QUERIES, FIRST_MOVES = 2.0, 1.5
TRUTH, DECOY = 0, 1  # trajectories
# Policies that a comparison of all schemes shows.
COMPARED: tuple[PolicyKind, ...] = ("greedy", "optimal", "minority", "random")
COMPARED_IN_QUEUES = COMPARED[:2]  # the others need a horizon
NOTHING: Float32Array = np.empty((0, 0), dtype=np.float32)


class DecoySection(Section):
    """`[decoy]`: what is sent when the policy obfuscates, and when a decoy moves.

    A decoy that is gated moves if the round would have been accepted, one that is not in every
    round, and one that is matched as often as learning queries have moved the true weights.
    """

    kind: str = "public"
    gated: bool | Literal["matched"] = "matched"


@dataclass(frozen=True, eq=False)
class Trajectories:
    """The state of the scheme.

    Parameters
    ----------
    true, decoy : (P,) weights
    updates, moves : number of moves of each
    memory : of the server's optimizer, None with FedAvg
    live : what the policy in force was made from, if it is refreshed
    policy : in force; None where it has to be made again
    """

    true: Vector
    decoy: Vector
    updates: int = 0
    moves: int = 0
    memory: ServerMemory | None = None
    live: LiveState = field(default_factory=LiveState)
    policy: Policy | None = None


@dataclass(frozen=True, eq=False)
class Scheduled(Scheme):
    """The scheme of one run: its policy, and how its decoy moves."""

    setup: Setup
    policy: RunPolicy
    decoy: Decoy

    sections: ClassVar[Mapping[str, type[Section]]] = {
        "policy": PolicySection,
        "decoy": DecoySection,
    }
    choices: ClassVar[Mapping[tuple[int | str, ...], str]] = {
        ("decoy", "gated"): 'true, false or "matched"'
    }
    slots: ClassVar[int] = 2

    # --- from the run file --------------------------------------------------------------------

    @classmethod
    def check(cls, parts: Parts, problem: Problem | None, name: str) -> None:
        """Raise InvalidInput if policy or decoy cannot be used, with the problem if it is known."""
        check_policy(only_part(parts, PolicySection), problem, name)
        DECOY_PLUG_INS.check(only_part(parts, DecoySection).kind, f"{name}: [decoy] kind")

    @classmethod
    def find_paths(cls, parts: Parts) -> Mapping[str, tuple[str, ...]]:
        """Return the keys that hold paths."""
        return {"policy": ("path",)}

    @classmethod
    def remembers(cls, parts: Parts, *, refits: bool) -> int:
        """Return how many of the latest rounds a refresh needs."""
        every = only_part(parts, PolicySection).refresh
        if every is None:
            return WINDOW + REFIT_ROUNDS if refits else 0
        return WINDOW + every

    @classmethod
    def name_parts(cls, parts: Parts) -> dict[str, str]:
        """Return the names of policy and decoy."""
        policy, decoy = only_part(parts, PolicySection), only_part(parts, DecoySection)
        return {"policy": policy.kind, "decoy": decoy.kind}

    @classmethod
    def list_plug_ins(cls, parts: Parts) -> dict[str, str]:
        """Return the decoy's name, unless it comes with the package."""
        kind = only_part(parts, DecoySection).kind
        return {} if kind in DECOYS else {"[decoy] kind": kind}

    @classmethod
    def list_variants(cls, problem: Problem) -> list[Variant]:
        """Return every policy that the problem admits with every decoy."""
        policies = COMPARED if isinstance(problem, FiniteHorizon) else COMPARED_IN_QUEUES
        return [
            Variant(
                f"{policy}-{decoy}",
                policy,
                decoy,
                {"policy": {"kind": policy}, "decoy": {"kind": decoy}},
            )
            for policy, decoy in itertools.product(policies, DECOYS)
        ]

    @classmethod
    def make(cls, setup: Setup) -> Self:
        """Make decoy and policy, solved for if necessary."""
        policy, decoy = only_part(setup.parts, PolicySection), only_part(setup.parts, DecoySection)
        made = make_decoy(
            decoy.kind,
            setup.task,
            batch_size=setup.batch_size,
            algorithm=setup.algorithm,
            optimizer=setup.optimizer,
        )
        check_policy_states(policy, setup.states)
        return cls(setup, make_run_policy(policy, setup.problem, seed=setup.hidden_seed), made)

    def accept_arguments(
        self, *, has_first: bool, policy: Policy | None, has_own_start: bool
    ) -> Scheme:
        """Return the scheme with another policy, if one is given."""
        return self if policy is None else replace(self, policy=RunPolicy(policy))

    # --- a run --------------------------------------------------------------------------------

    def start(
        self, aggregator: Aggregator, first: Vector | None = None, *, is_fresh: bool = False
    ) -> Trajectories:
        """Return both trajectories before the first round."""
        true = self._draw_weights(TRUTH) if first is None else first
        decoy = self._draw_weights(DECOY) if first is None or is_fresh else first
        memory = aggregator.start(true)
        return Trajectories(true, decoy, memory=memory, policy=self.policy.policy)

    def _draw_weights(self, trajectory: int) -> Vector:
        seed = draw_seed(self.setup.hidden_seed, Stream.INITIAL, trajectory)
        return self.setup.task.draw_weights(seed)

    def follow(self, state: Trajectories, history: History) -> Trajectories:
        """Make the policy anew from the rounds seen, if it is due or the run was resumed."""
        section, problem = only_part(self.setup.parts, PolicySection), self.setup.problem
        rounds, live = history.rounds, state.live
        is_new = section.refresh is not None and is_due(live, section.refresh, rounds)
        if is_new or (history.is_outdated and rounds > live.refreshed):
            is_learning = isinstance(problem, FiniteHorizon) or problem.objective == "privacy"
            live = refresh_live(
                problem,
                section.live_method,
                live,
                history.seen,
                rounds=rounds,
                spent=history.spent["learning_cost" if is_learning else "privacy_cost"],
                seed=self.setup.hidden_seed,
            )
        elif state.policy is not None:
            return state
        elif not live.refreshed:
            return replace(state, policy=self.policy.policy)
        made = make_live_policy(problem, section.live_method, live, history.seen, rounds=rounds)
        return replace(state, live=live, policy=made)

    def ask(self, state: Trajectories, round_number: int, seen: Observation) -> Query:
        """Draw the action, and with it the trajectory whose weights are sent."""
        policy = self.policy.policy if state.policy is None else state.policy
        learn_prob = float(policy.learn_prob(seen))
        generator = make_generator(self.setup.hidden_seed, Stream.ACTION, round_number)
        trajectory = TRUTH if generator.random() < learn_prob else DECOY
        sent, is_needed = self.shown(state)[trajectory], self.uses_replies(trajectory)
        return Query(round_number, seen, sent, trajectory, learn_prob, is_needed)

    def shown(self, state: Trajectories) -> tuple[Vector, ...]:
        """Return the weights of both trajectories."""
        return state.true, state.decoy

    def models(self, state: Trajectories) -> tuple[Vector, ...]:
        """Return the weights of both trajectories."""
        return state.true, state.decoy

    def uses_replies(self, trajectory: int) -> bool:
        """Return whether replies are used: those to the truth, and what a decoy needs."""
        if trajectory == TRUTH or self.setup.layout.measured > 0:
            return True
        return self.decoy.needs_replies

    @property
    def reading(self) -> Reading:
        """The values of each reply if the decoy needs them."""
        return "values" if self.decoy.needs_replies else "mean"

    def learn(
        self, state: Trajectories, query: Query, outcome: Outcome, aggregator: Aggregator
    ) -> Learning:
        """Move the trajectory that was queried: the coupled updates, equation (1) of the paper.

        x_{k+1} = x_k - mu_k H(r_k, y_k, q_k), where H is zero for every trajectory but the queried
        one:

        - the true trajectory moves on the replies if the round is a success and an update is owed
          (some policies use every reply, or learn when nothing is owed);
        - a decoy moves by its own rule: if the round is a success (gated), in any case (not
          gated), or as often as learning queries have moved the true trajectory (matched).

        A round whose aggregation fails moves nothing and is not accepted, whichever trajectory it
        was.
        """
        is_true, is_moving = query.trajectory == TRUTH, self._is_moving(state, query, outcome)
        if not (is_moving or aggregator.is_steady):
            return Step(state, outcome.accepted)
        learned = obfuscated = None
        if is_true or aggregator.is_steady:
            learned = self._move_truth(state, outcome, aggregator, is_kept=is_moving and is_true)
        if not is_true or aggregator.is_steady:
            obfuscated = yield from self._move_decoy(
                state, query.round, outcome, aggregator, is_kept=is_moving and not is_true
            )
        moved = learned if is_true else obfuscated
        if moved is None:
            return Step(state, accepted=False)
        if not is_moving:
            return Step(state, outcome.accepted)
        return Step(moved, outcome.accepted, updates=moved.updates - state.updates)

    def _is_moving(self, state: Trajectories, query: Query, outcome: Outcome) -> bool:
        """Return whether the trajectory that was queried moves, if it can."""
        if query.trajectory == TRUTH:
            is_enough = outcome.has_quorum and outcome.examples > 0
            is_used = outcome.accepted or (self.policy.takes_every_reply and is_enough)
            return is_used and (int(query.seen.backlog) > 0 or self.policy.updates_unowed)
        gated = only_part(self.setup.parts, DecoySection).gated
        if gated != "matched":
            return outcome.accepted or not gated
        # The draw of a matched decoy is hidden.
        queries = int(query.seen.learning_queries) + FIRST_QUERIES
        draw = make_generator(self.setup.hidden_seed, Stream.MOVE, query.round).random()
        return bool(draw < (state.updates + FIRST_MOVES) / queries)

    def _move_truth(
        self, state: Trajectories, outcome: Outcome, aggregator: Aggregator, *, is_kept: bool
    ) -> Trajectories | None:
        """Return the state after a move of the truth on the replies, None where it fails."""
        aggregate = aggregator.attempt(TRUTH, state.true, outcome.replies, keeps=is_kept)
        if aggregate is None:
            return None
        finished = aggregator.finish(state.true, state.memory, aggregate)
        if finished is None:
            return None
        if is_kept:
            aggregator.keep(TRUTH)
        true, memory = finished
        return replace(state, true=true, memory=memory, updates=state.updates + 1)

    def _move_decoy(
        self,
        state: Trajectories,
        round_number: int,
        outcome: Outcome,
        aggregator: Aggregator,
        *,
        is_kept: bool,
    ) -> Generator[Jobs, list[Vector], Trajectories | None]:
        """Return the state after a move of the decoy, whose training is work like any other.

        None where it lacks the replies that it needs, or the result is not finite.
        """
        if self.decoy.needs_replies and not len(outcome.replies.examples):
            return None
        proposed = yield from self._propose(state, round_number, outcome, aggregator.is_steady)
        moved = aggregator.attempt(
            DECOY, state.decoy, outcome.replies, keeps=is_kept, proposal=proposed
        )
        if moved is None:
            return None
        if is_kept:
            aggregator.keep(DECOY)
        return replace(state, decoy=moved, moves=state.moves + 1)

    def _propose(
        self, state: Trajectories, round_number: int, outcome: Outcome, is_steady: bool
    ) -> Generator[Jobs, list[Vector], Vector]:
        """Return where the decoy would move to."""
        view, seed = self._view(state, outcome, is_steady), self.setup.hidden_seed
        planning = make_generator(seed, Stream.DECOY, round_number, 0)
        plan = partial(self.decoy.plan, view, generator=planning)
        results: list[Vector] = []
        if is_steady:
            for group in group_jobs(plan()):
                results += yield Jobs(partial(tuple, group))
        elif self.decoy.needs_replies:
            results = yield Jobs(plan)
        else:
            origin = (id(self.decoy), seed, round_number, view.moves)
            results = yield Jobs(plan, (view.weights, view.learner), origin)
        moving = make_generator(seed, Stream.DECOY, round_number, 1)
        results = [self._hold_measured(result, view.weights) for result in results]
        moved = self.decoy.move(view, results, generator=moving)
        return self._measure(moved, outcome.replies)

    def _view(self, state: Trajectories, outcome: Outcome, is_steady: bool) -> DecoyView:
        """Return what the decoy may use."""
        replies = outcome.replies.stack() if self.decoy.needs_replies else NOTHING
        return DecoyView(
            weights=state.decoy,
            learner=state.true,
            replies=self._hold_measured(replies, state.decoy),
            examples=outcome.replies.examples,
            moves=state.moves,
            predict=self.setup.kernel.predict,
            is_steady=is_steady,
        )

    def _hold_measured(self, values: Float32Array, weights: Vector) -> Float32Array:
        """Set what (..., P) results measured to where it was: a decoy moves parameters alone."""
        layout = self.setup.layout
        if layout.measured and values.size:
            values[..., layout.num_trained :] = weights[layout.num_trained :]
        return values

    def _measure(self, proposed: Vector, replies: SiftedReplies) -> Vector:
        """Return a decoy's proposal with what the clients measured at its query.

        Running statistics of public data would tell a decoy from the truth, and so would
        statistics that stay: they are the average of the replies on every trajectory.
        """
        layout = self.setup.layout
        if layout.measured == 0 or not replies.clients:
            return proposed
        measured, place = proposed.copy(), slice(layout.num_trained, None)
        if replies.average is not None:
            measured[place] = replies.average[place]
        elif replies.values[0].size:
            parts = tuple(values[place] for values in replies.values)
            measured[place] = average_replies(replace(replies, values=parts))
        return measured

    def change(self, state: Trajectories, event: Event) -> Trajectories | None:
        """Return the state after an event; both trajectories roll back together.

        Numbers of moves stay as they are: a matched decoy moves as often as learning queries have
        moved the truth.
        """
        if isinstance(event, Rollback):
            target: Trajectories = event.target
            return replace(state, true=target.true, decoy=target.decoy, memory=target.memory)
        if isinstance(event, Restart) and state.memory is not None:
            return replace(state, memory=state.memory.empty())
        return state

    def pack(self, state: Trajectories) -> Packed:
        """Return weights, memory and what a refreshed policy was made from."""
        arrays = {"true": state.true, "decoy-1": state.decoy}
        facts: dict[str, Any] = {"updates": state.updates, "moves": state.moves}
        memory = pack_memory(state.memory)
        return Packed(
            {**arrays, **memory.arrays}, {**facts, **memory.facts, "live": dict(vars(state.live))}
        )

    def unpack(self, packed: Packed) -> Trajectories:
        """Return the state; its policy is made again before the next round."""
        facts = packed.facts
        return Trajectories(
            packed.arrays["true"],
            packed.arrays["decoy-1"],
            read_count(facts, "updates"),
            read_count(facts, "moves"),
            unpack_memory(packed),
            LiveState.from_dict(facts["live"]),
        )

    # --- what it says of itself ---------------------------------------------------------------

    def describe(self) -> PublicFacts:
        """Return the policy that whoever knows the problem expects."""
        section, problem = only_part(self.setup.parts, PolicySection), self.setup.problem
        return PublicFacts(
            expect_policy(section, problem, self.policy),
            self.policy.takes_every_reply,
            has_schedule=section.refresh is None,
        )

    def find_policy(self, state: Trajectories, history: History) -> PolicyInForce:
        """Return the policy that a run follows now, and the problem that it was made for."""
        section, problem = only_part(self.setup.parts, PolicySection), self.setup.problem
        live, rounds = state.live, history.rounds
        if not live.refreshed:
            return PolicyInForce(section.kind, self.policy.policy, problem)
        seen = history.seen
        policy = make_live_policy(problem, section.live_method, live, seen, rounds=rounds)
        fitted = fit_live(problem, live, seen, rounds=rounds)
        if isinstance(fitted, QueueProblem) and isinstance(problem, QueueProblem):
            problem = fitted.with_limit(problem.limit)  # the user's limit, not the steered one
        return PolicyInForce(section.kind, policy, problem)

    def find_refresh(self, state: Trajectories) -> int:
        """Return the rounds done at the last refresh."""
        return state.live.refreshed


def group_jobs(jobs: Sequence[LocalJob]) -> list[list[LocalJob]]:
    """Return groups of jobs of the same size, which run at the same time in a steady run.

    Jobs of unlike size may take less time together than one after the other.
    """
    return [list(group) for _, group in itertools.groupby(jobs, key=lambda job: len(job.rows))]
