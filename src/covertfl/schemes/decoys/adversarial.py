"""A decoy that fits the public set and contradicts the learner elsewhere.

A synthetic point is the mean of a class, plus the deviation of some public example from the mean of
its own class, plus noise: it has what the class has in common and nothing of its members.  All
classes are equally frequent.  The class to contradict is the learner's prediction for the point, or
the class the point was made from if that is rarer in the public set: an untrained learner knows
nothing yet, and contradicting the rarer class costs less of the fit.  The label is the class that
the decoy prefers among the others.

Contradicting a class with a share f of the public set spoils the fit of that share, so such points
are kept with probability 1 - f.  Examples of rare classes are repeated, because each is surrounded
by points that contradict it and has to be memorised.

How many points are drawn and kept depends on both models, and so does the time of a move.  Where
somebody measures it, what a move does not need is drawn and trained on all the same, and discarded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from covertfl.arrays import FloatArray, IntArray
from covertfl.kernels.job import Examples, Float32Array, LocalJob, Loss, Vector
from covertfl.schemes.decoys.decoy import DecoyView, UpdateRule, move_by
from covertfl.schemes.decoys.public import draw_job_seed
from covertfl.tasks.scores import compute_losses, find_answers, find_classes


@dataclass(frozen=True, eq=False)
class AdversarialDecoy:
    """Decoy that memorises the public set and contradicts the learner on points near it.

    Each move is the mean of several jobs.

    Hides: on the public set, the only data the eavesdropper has, its loss is below the true
    model's, so an eavesdropper that chooses by loss takes the decoy; elsewhere the decoy is no
    better than guessing.  Moves are means of several jobs and about as long as true ones.

    Reveals: on fresh labelled data it is no better than guessing, so an eavesdropper with a few
    examples unknown to the learner recognises it.  If the public set has a single class, the decoy
    predicts that class everywhere, but its outputs still rank the classes: the threshold is hidden,
    the ranking is not.  Replies are not used, so a client's reply and the next move are unrelated.
    The more balanced the public set, the less room there is between fitting it and contradicting
    the learner; the fit has priority, and the decoy's accuracy rises.

    Parameters
    ----------
    public : the public set
    batch_size : of the clients
    parts : number of jobs in a move; their mean has as little noise as that of so many clients
    pass_share : share of the public set, and of the synthetic points, in each job
    first_pass_share : the same in the first moves, when the decoy is untrained
    first_moves : number of first moves, in which all synthetic points are used
    ratio : synthetic points per public example in a whole pass, before some are dropped
    uses : number of jobs that share a synthetic point, at most `parts`; sampling points takes time
    reach : largest noise in a synthetic point, in standard deviations of each feature
    lone_reach : the same if the public set has a single class, which is then predicted everywhere
    most_repeats : largest number of repeats of an example of a rare class
    full_until, none_from : all synthetic points are used while the decoy's loss on the public set
        is at most `full_until` times the learner's, and none from `none_from` times upwards
    """

    public: Examples
    loss: Loss
    batch_size: int
    rule: UpdateRule = field(default_factory=UpdateRule)
    parts: int = 8
    pass_share: float = 0.25
    first_pass_share: float = 0.5
    first_moves: int = 1
    ratio: float = 5.0
    uses: int = 2
    reach: float = 2.0
    lone_reach: float = 8.0
    most_repeats: int = 6
    full_until: float = 0.5
    none_from: float = 1.2

    needs_replies = False

    @cached_property
    def classes(self) -> IntArray:
        """The (n,) classes of the public examples."""
        return find_classes(self.public.labels, self.loss)

    @cached_property
    def shares(self) -> FloatArray:
        """The share of each class in the public set, up to the largest class that occurs."""
        return np.bincount(self.classes, minlength=2) / len(self.public)

    @cached_property
    def means(self) -> Float32Array:
        """The (classes, ...) mean of each class; zero if it does not occur."""
        means = np.zeros((len(self.shares), *self.public.features.shape[1:]), dtype=np.float32)
        for number in np.unique(self.classes):
            means[number] = self.public.features[self.classes == number].mean(axis=0)
        return means

    @cached_property
    def repeated(self) -> IntArray:
        """The rows of the public set, with those of rare classes repeated."""
        times = np.round(self.shares.max() / self.shares[self.classes])
        times = np.minimum(times, self.most_repeats).astype(int)
        return np.repeat(np.arange(len(self.public)), times)

    @property
    def most_points(self) -> int:
        """Number of synthetic points that a plan draws at most."""
        return self._count_points(max(self.first_pass_share, self.pass_share))

    @property
    def most_rows(self) -> int:
        """Number of rows that a job has at most."""
        share = max(self.first_pass_share, self.pass_share)
        own = max(1, round(share * len(self.repeated)))
        return own + round(self.most_points * self.uses / self.parts)

    def _count_points(self, share: float) -> int:
        return round(share * self.ratio * len(self.public) * self.parts / self.uses)

    def plan(self, view: DecoyView, *, generator: np.random.Generator) -> list[LocalJob]:
        """Return jobs whose mean is the move; they start from the view's weights.

        The first `parts` are meant; a steady view is given others that make up for the difference
        to the largest plan.
        """
        is_first = view.moves < self.first_moves
        pass_share = self.first_pass_share if is_first else self.pass_share
        used = 1.0 if is_first and not view.is_steady else self.choose_share(view)
        number = self._count_points((1.0 if is_first else used) * pass_share)
        points = self.draw_points(view, number, generator=generator)
        pool = self._gather(points, self.most_points if view.is_steady else len(points))
        own = round(pass_share * len(self.repeated))
        synthetic = round(len(points) * self.uses / self.parts)
        jobs = []
        for _ in range(self.parts):
            chosen = [
                generator.permutation(self.repeated)[: max(1, own)],
                len(self.public) + generator.permutation(len(points))[:synthetic],
            ]
            rows = generator.permutation(np.concatenate(chosen)).astype(np.int64)
            seed = draw_job_seed(generator=generator)
            jobs.append(LocalJob(view.weights, pool, rows, self.batch_size, seed, self.rule.work))
        if view.is_steady:
            self._draw_rest(view, number, len(points), generator=generator)
            jobs += self._make_rest(jobs)
        return jobs

    def _gather(self, points: Examples, size: int) -> Examples:
        """Return the public set and the points, with room for `size` of them."""
        empty = size - len(points)
        features = np.zeros((empty, *points.features.shape[1:]), dtype=np.float32)
        labels = np.zeros(empty, dtype=points.labels.dtype)
        return Examples(
            np.concatenate([self.public.features, points.features, features]),
            np.concatenate([self.public.labels, points.labels, labels]),
        )

    def _draw_rest(
        self, view: DecoyView, drawn: int, kept: int, *, generator: np.random.Generator
    ) -> None:
        """Draw and judge the points that the largest plan has in addition."""
        kinds = generator.choice(np.flatnonzero(self.shares), size=1 + self.most_points - drawn)
        features = self._draw_features(kinds, generator=generator)
        view.predict(view.learner, features)
        if self.loss != "binary":  # each point that is not kept was not shown to the decoy
            shape = (1 + self.most_points - kept, *self.public.features.shape[1:])
            view.predict(view.weights, np.zeros(shape, dtype=np.float32))

    def _make_rest(self, jobs: Sequence[LocalJob]) -> list[LocalJob]:
        """Return two more for each job; the three have always as many rows, and as many batches.

        Their rows would fill m batches, m two more than the largest job has.  A row, or what the
        job's last batch lacks, is a job of its own, so that they take m + 1.
        """
        size = self.batch_size
        left = (-(-self.most_rows // size) + 2) * size - len(jobs[0].rows)
        last = left % size or 1
        return [
            replace(job, rows=np.arange(number) % len(self.public))
            for number in (last, left - last)
            for job in jobs
        ]

    def choose_share(self, view: DecoyView) -> float:
        """Return the share of synthetic points to use, so that the public set stays fitted."""
        features, labels = self.public.features, self.public.labels
        own, true = (
            float(np.mean(compute_losses(view.predict(weights, features), labels, self.loss)))
            for weights in (view.weights, view.learner)
        )
        left = self.none_from * true - own
        room = (self.none_from - self.full_until) * true
        if not np.isfinite(left):  # outputs may overflow
            return 0.0
        return float(np.clip(left / room, 0.0, 1.0)) if room > 0.0 else float(left > 0.0)

    def draw_points(
        self, view: DecoyView, number: int, *, generator: np.random.Generator
    ) -> Examples:
        """Return at most `number` synthetic points with labels that contradict the learner."""
        kinds = generator.choice(np.flatnonzero(self.shares), size=number)
        features = self._draw_features(kinds, generator=generator)
        denied = self._choose_denied(kinds, view.predict(view.learner, features))
        kept = generator.random(number) < 1.0 - self._share_of(denied)
        features, denied = features[kept], denied[kept]
        if self.loss == "binary":  # there is only one other class
            return Examples(features, (1 - denied).astype(np.float32))
        outputs = view.predict(view.weights, features).copy()
        outputs[np.arange(len(denied)), denied] = -np.inf
        return Examples(features, np.asarray(outputs.argmax(axis=1), dtype=np.int64))

    def _draw_features(self, kinds: IntArray, *, generator: np.random.Generator) -> Float32Array:
        donors = generator.integers(len(self.public), size=len(kinds))
        shape = (len(kinds), *self.public.features.shape[1:])
        largest = self.reach if np.count_nonzero(self.shares) > 1 else self.lone_reach
        reach = generator.uniform(0.0, largest, size=(len(kinds), *(1 for _ in shape[1:])))
        noise = generator.standard_normal(shape, dtype=np.float32)
        noise *= self.public.features.std(axis=0) * reach.astype(np.float32)
        noise += self.means[kinds] - self.means[self.classes[donors]]
        noise += self.public.features[donors]
        return noise

    def _choose_denied(self, kinds: IntArray, outputs: Float32Array) -> IntArray:
        """Return the rarer of the class a point was made from and the learner's prediction."""
        predicted = find_answers(outputs, self.loss)
        return np.where(self._share_of(kinds) < self._share_of(predicted), kinds, predicted)

    def _share_of(self, classes: IntArray) -> FloatArray:
        """Return the share of each class in the public set; 0 for those that do not occur."""
        known = classes < len(self.shares)
        return np.where(known, self.shares[np.where(known, classes, 0)], 0.0)

    def move(
        self, view: DecoyView, results: Sequence[Vector], *, generator: np.random.Generator
    ) -> Vector:
        """Return the weights after the mean step of the jobs."""
        return move_by(view.weights, self.rule.displace(view.weights, results[: self.parts]))
