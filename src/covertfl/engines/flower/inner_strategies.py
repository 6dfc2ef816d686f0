"""Wrapped strategies: one for each trajectory, and others with a single duty each.

A server optimiser remembers where its model went, so each trajectory that moves by itself has a
strategy of its own, in its slot.  A copy of it aggregates replies, and takes its place if the move
is kept (`InnerStrategies.attempt`, `InnerStrategies.keep`).  The config that is sent to clients
comes from a strategy that never sees a reply, so it cannot depend on the actions; evaluations by
clients go to one that never configures a round.  Work whose result is discarded, done so that every
round takes the same time, is given to a spare strategy.

Rounding must not reveal the true trajectory.  Coordinates that nobody trains (dead inputs, unused
rows of an embedding, frozen layers) would move by a few units in the last place where 32-bit
replies are averaged, and stay where a single proposal is taken over.  So all trajectories go
through the same arithmetic, with the same number of replies of the same weights, and the average of
equal replies is exactly their value (`InnerStrategies._prepare`):

- Flower's strategies that only average (`AVERAGERS`) are given one reply of weight 1, the average
  of all.  It has no metrics besides its weight.  Of these very types, and not of classes derived
  from them, no more than the average is ever needed (`takes_mean`).
- All others (`FedMedian`, `Krum`, `Bulyan`, `QFedAvg`, wrappers, a user's own, or any with its own
  `train_metrics_aggr_fn`) are given all replies with their counts and metrics, as 64-bit floats:
  the error of their sums is lost when the result is rounded to 32 bits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi, Strategy
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from covertfl.engines.flower.array_form import ArrayForm
from covertfl.engines.flower.grid import NodeCountGrid
from covertfl.engines.flower.messages import (
    ARRAYS,
    CONFIG,
    EXAMPLES,
    METRICS,
    MessageKeys,
    combine_metrics,
    copy_config,
    find_arrays,
    find_evaluations,
    find_metrics,
    has_more,
    restrict_metrics,
)
from covertfl.engines.flower.silence import silenced
from covertfl.engines.flower.strategy_state import (
    Arrays,
    find_setting,
    pack_state,
    require_distinct,
    transfer_state,
    unpack_state,
)
from covertfl.errors import InvalidInput
from covertfl.kernels.job import Float32Array, Vector
from covertfl.schemes.replies import is_finite
from covertfl.schemes.scheme import Packed

logger = logging.getLogger("flwr")

MakeStrategy = Callable[[], Strategy]
# What a strategy moves on: replies, or their average where that is all it takes.
Given = Sequence[Message] | Vector
# Strategies of Flower whose result depends on the replies through their average alone.
AVERAGERS = (FedAvg, FedProx, FedAvgM, FedAdam, FedAdagrad, FedYogi)


class InnerStrategies:
    """A wrapped strategy for each trajectory.

    Parameters
    ----------
    make : makes the strategy, a new one each time
    slots : number of trajectories that move by themselves
    holds : whether an attempt may be kept in a later round than its own
    most_examples : largest number of examples that is accepted in a client's evaluation
    """

    def __init__(
        self, make: MakeStrategy, slots: int, form: ArrayForm, most_examples: int, *, holds: bool
    ) -> None:
        made = [_make_checked(make) for _ in range(slots + 5)]
        require_distinct(made)
        self._waiting: int | None  # slot whose copy waits to be kept
        *self._own, self._pending, self._spare, self._configuring, self._evaluating, self._fresh = (
            made
        )
        self._holds, self._waiting, self._latest = holds, None, self._spare
        self._form, self._most_examples = form, most_examples
        self._averages = _is_averager(self._fresh)
        self._steps = [0] * slots
        self._reported: set[str] = set()
        self.keys = MessageKeys(
            str(find_setting(self._fresh, "arrayrecord_key", ARRAYS)),
            str(find_setting(self._fresh, "configrecord_key", CONFIG)),
            str(find_setting(self._fresh, "weighted_by_key", EXAMPLES)),
        )
        least = (
            find_setting(self._fresh, name, 1)
            for name in ("min_available_nodes", "min_train_nodes")
        )
        # As many must be connected before a round begins.
        self.least_nodes = self._num_nodes = max(1, *map(int, least))

    @property
    def takes_mean(self) -> bool:
        """Whether the strategy needs nothing of the replies but their average."""
        return self._averages and type(self._fresh) in AVERAGERS

    @property
    def sample(self) -> Strategy:
        """A strategy like all others, which has not done anything."""
        return self._fresh

    def count_sampled(self, present: int) -> int:
        """Return how many of the connected nodes are sampled for a round."""
        fraction = float(find_setting(self._fresh, "fraction_train", 1.0))
        least = int(find_setting(self._fresh, "min_train_nodes", 1))
        return min(max(int(present * fraction), least), present)

    def make_config(self, round_number: int, config: ConfigRecord | None) -> ConfigRecord:
        """Return the config that clients are sent, which depends on the round alone.

        The wrapped strategy may add to the server app's config.
        """
        try:
            # The arrays are empty, whatever is queried: the strategy must not learn it.
            messages = self._configure(
                self._configuring, round_number, ArrayRecord(), copy_config(config)
            )
        except InvalidInput:
            raise
        except Exception as error:  # no client can cause this
            raise InvalidInput(
                f"the wrapped strategy cannot configure round {round_number}: "
                f"{type(error).__name__}: {error}"
            ) from error
        for message in messages:
            for record in message.content.config_records.values():
                return copy_config(record)
        return copy_config(config)

    def _configure(
        self, strategy: Strategy, number: int, arrays: ArrayRecord, config: ConfigRecord
    ) -> list[Message]:
        """Return what a strategy would send to as many nodes as it waits for."""
        grid = NodeCountGrid(self._num_nodes)
        with silenced():
            messages = list(strategy.configure_train(number, arrays, config, grid))
        self._num_nodes = grid.number
        return messages

    def aggregate_evaluation(
        self, round_number: int, replies: Sequence[Message]
    ) -> MetricRecord | None:
        """Aggregate clients' evaluations with the wrapped strategy; None where it fails."""
        valid = find_evaluations(replies, self.keys.examples, self._most_examples)
        metrics = self._restrict(valid)
        rebuilt = [
            _rebuild(reply, None, record) for reply, record in zip(valid, metrics, strict=True)
        ]
        try:
            with silenced():
                return self._evaluating.aggregate_evaluate(round_number, rebuilt)
        except Exception as error:  # clients must not be able to end the training
            self._report("aggregate evaluations", error)
            return None

    def aggregate_metrics(self, records: Sequence[MetricRecord]) -> MetricRecord | None:
        """Aggregate the metrics of valid replies with the wrapped strategy's own function."""
        if not any(map(has_more, records)):
            return None
        aggregate = find_setting(self._evaluating, "train_metrics_aggr_fn", aggregate_metricrecords)
        try:
            with silenced():
                return combine_metrics(records, self.keys.examples, aggregate)
        except Exception as error:  # clients must not be able to end the training
            self._report("aggregate metrics", error)
            return None

    def attempt(self, slot: int, weights: Vector, replies: Given, *, keeps: bool) -> Vector | None:
        """Return where a copy of the slot's strategy moves to; None where it fails.

        The strategy itself stays as it is.  A copy that `keeps` its move waits for `keep`; the same
        work is done in any case.
        """
        self._latest = self._spare
        transfer_state(self._own[slot], self._latest)
        moved = self._move(self._latest, self._steps[slot] + 1, weights, replies)
        if keeps and moved is not None:
            self._pending, self._spare, self._waiting = self._spare, self._pending, slot
        return moved

    def keep(self, slot: int) -> None:
        """Let the copy that waits for a slot, if any, take the place of the slot's strategy."""
        if self._waiting != slot:
            return
        self._own[slot], self._pending, self._waiting = self._pending, self._own[slot], None
        self._steps[slot] += 1

    def _move(
        self, strategy: Strategy, number: int, weights: Vector, replies: Given
    ) -> Vector | None:
        """Aggregate once; None where the strategy returns nothing, or nothing usable."""
        try:
            sent = ArrayRecord(self._form.restrict(self._form.find_arrays(weights)))
            self._configure(strategy, number, sent, ConfigRecord())
            prepared = self._prepare(replies)
            average = find_arrays(prepared[0]) if self._averages else None
            with silenced():
                arrays, _ = strategy.aggregate_train(number, prepared)
            if arrays is None:
                return None
            moved = self._form.flatten(arrays)
            if average is not None:  # a server optimizer is for parameters
                place = slice(self._form.layout.num_trained, None)
                moved[place] = self._form.flatten(average)[place]
            if not is_finite(moved):
                raise AggregationError("its result is not finite")
            return moved
        except Exception as error:  # clients must not be able to end the training
            self._report("aggregate", error)
            return None

    def _prepare(self, replies: Given) -> list[Message]:
        """Return replies whose aggregation is exact where they are equal.

        That is one with the average of all if the strategy only averages; otherwise all of them, as
        64-bit floats.
        """
        if isinstance(replies, np.ndarray):
            return [self._make_single(replies + np.float32(0.0))]  # as an average: zeros unsigned
        records = [find_arrays(reply) for reply in replies]
        metrics = [find_metrics(reply) for reply in replies]
        if not self._averages:
            return [
                _rebuild(reply, self._form.widen(record), own)
                for reply, record, own in zip(replies, records, metrics, strict=True)
            ]
        counts = [cast(int, own[self.keys.examples]) for own in metrics]
        return [self._make_single(self._form.average(records, counts))]

    def _make_single(self, average: Vector) -> Message:
        """Return a reply of weight 1 that stands for all."""
        arrays = ArrayRecord(self._form.restrict(self._form.write(average)))
        metrics = MetricRecord({self.keys.examples: 1})
        return Message(
            RecordDict({ARRAYS: arrays, METRICS: metrics}), SUPERLINK_NODE_ID, MessageType.TRAIN
        )

    def _restrict(self, replies: Sequence[Message]) -> list[MetricRecord]:
        return restrict_metrics([find_metrics(reply) for reply in replies], self.keys.examples)

    def _report(self, what: str, error: Exception) -> None:
        """Log each kind of failure once: how often it occurs may depend on the trajectory."""
        kind = f"{what} {type(error).__name__}"
        if kind not in self._reported:
            self._reported.add(kind)
            logger.warning(
                "the wrapped strategy could not %s: %s: %s", what, type(error).__name__, error
            )

    def clean(self, replies: Sequence[Message]) -> list[Message]:
        """Return valid replies with the records that strategies expect, and nothing else."""
        return self._rebuild_all(replies, self._form.normalise)

    def scale(self, replies: Sequence[Message], name: str, factors: Float32Array) -> list[Message]:
        """Return valid replies as `clean` does, columns of one array multiplied by (d,) factors."""
        return self._rebuild_all(replies, lambda record: self._form.scale(record, name, factors))

    def propose(self, replies: Sequence[Message], proposal: Vector) -> list[Message]:
        """Return replies as `clean` does, all with a decoy's proposal instead of their parameters.

        What clients have measured stays their own.
        """
        arrays = self._form.write(proposal)
        return self._rebuild_all(replies, lambda record: self._form.measure(arrays, record))

    def _rebuild_all(
        self, replies: Sequence[Message], make_arrays: Callable[[ArrayRecord], dict[str, Array]]
    ) -> list[Message]:
        """Return replies with the metrics that all of them have, and arrays made of their own."""
        return [
            _rebuild(reply, make_arrays(find_arrays(reply)), metrics)
            for reply, metrics in zip(replies, self._restrict(replies), strict=True)
        ]

    def _list_stored(self) -> dict[str, Strategy]:
        """Return the strategies whose state matters, by their names in a checkpoint."""
        stored = {f"strategy-{number}": strategy for number, strategy in enumerate(self._own)}
        if self._holds:
            # Of the same size whether or not one is pending, and so are checkpoints.
            stored["pending"] = self._latest if self._waiting is None else self._pending
        return {**stored, "configuring": self._configuring, "evaluating": self._evaluating}

    def remember(self) -> Packed:
        """Return what the strategies have changed since they were made."""
        arrays: Arrays = {}
        facts: dict[str, Any] = {"steps": list(self._steps), "lost": []}
        if self._holds:
            facts["waiting"] = self._waiting
        for role, strategy in self._list_stored().items():
            packed, lost = pack_state(role, strategy, self._fresh, arrays)
            facts |= packed
            facts["lost"] += lost
        return Packed(arrays, facts)

    def recall(self, stored: Packed) -> None:
        """Restore what a checkpoint stored.

        Raises
        ------
        InvalidInput
            if a strategy has an attribute that could not be stored
        """
        lost = stored.facts.get("lost", [])
        if lost:
            raise InvalidInput(
                f"the run cannot be resumed: the attribute {lost[0]} of its strategy could not be "
                "stored; only arrays, numbers, text and lists or dictionaries of them can"
            )
        self._steps = [int(step) for step in stored.facts["steps"]]
        self._waiting = stored.facts.get("waiting")
        for role, strategy in self._list_stored().items():
            unpack_state(role, strategy, stored.facts, stored.arrays)


def _make_checked(make: MakeStrategy) -> Strategy:
    """Make a strategy; raise InvalidInput if it is none."""
    made = make()
    if isinstance(made, SecAggPlusWorkflow):
        raise InvalidInput(
            "secure aggregation cannot be made covert, because every reply is checked, counted and "
            "given to a strategy by itself, and masks hide all replies but their sum"
        )
    if not isinstance(made, Strategy):
        raise InvalidInput(
            "make_strategy must return a strategy of flwr.serverapp.strategy, "
            f"got {type(made).__name__}"
        )
    return made


def _is_averager(strategy: Strategy) -> bool:
    """Return whether a strategy aggregates as one of `AVERAGERS` does, without own metrics."""
    aggregates = getattr(strategy.aggregate_train, "__func__", None)
    return (
        any(aggregates is known.aggregate_train for known in AVERAGERS)
        and vars(strategy).get("train_metrics_aggr_fn") is aggregate_metricrecords
    )


def _rebuild(reply: Message, arrays: Mapping[str, Array] | None, metrics: MetricRecord) -> Message:
    """Return a reply with new records of its own: some strategies empty what they are given."""
    content = RecordDict({METRICS: metrics})
    if arrays is not None:
        content = RecordDict({ARRAYS: ArrayRecord(dict(arrays)), METRICS: metrics})
    rebuilt = Message(content, reply_to=reply)
    rebuilt.metadata.__dict__["_src_node_id"] = reply.metadata.src_node_id
    return rebuilt
