"""Minimise a function from noisy gradients: the model of section 2 of the paper, without clients.

The function is smooth, not convex, and the same in every coordinate,

    f(x) = sum_i  t_i^2 / (1 + t_i^2) + a (1 - cos(b t_i)),   t = x - minimum,

with its least value 0 at `minimum`, further local minima, and a bounded gradient with Lipschitz
constant L = 2 + a b^2 (both terms have their largest curvature at the minimum).  Its domain is a
ball around the origin (assumption A1 of the paper), and steps that leave it are projected onto it.

The standard deviation tau of the noise is log-normal, with a scale that depends on the oracle state
such that a response is accepted with probability `success[state]`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.errors import InvalidInput
from covertfl.kernels.weights import Layout, Vector
from covertfl.tasks.task import DataSettings

RIPPLE, FREQUENCY = 0.05, 6.0  # a and b
STEEPEST = 3.0 * math.sqrt(3.0) / 8.0  # largest derivative of t^2 / (1 + t^2), at 1 / sqrt(3)
SUCCESS = (0.1, 0.43, 0.95)  # of the paper's three oracle states
DIMENSION = 10
START_RADIUS = 2.0  # times sqrt(d), as the next
DOMAIN_RADIUS = 6.0
CERTAIN = 8.0  # standard deviations beyond which a probability counts as 0 or 1
STREAM = 0x66756E63  # separates its random numbers from those of others with the same seed


@dataclass(frozen=True)
class FunctionTask:
    """A function, and an oracle that responds to queries with noisy gradients.

    Parameters
    ----------
    minimum : (d,) minimiser of the function
    decoy_minima : (d,) minimiser of each decoy's function, which has the same shape; at least one
    radius : of the domain, a ball around the origin that holds all minimisers; infinite for none
    noise_limit : largest standard deviation of the noise in an accepted response, positive
    success : probability by oracle state that a response is accepted, each in [0, 1]
    spread : standard deviation of log(tau), positive
    """

    minimum: tuple[float, ...]
    decoy_minima: tuple[tuple[float, ...], ...]
    radius: float = math.inf
    noise_limit: float = 1.0
    success: tuple[float, ...] = SUCCESS
    spread: float = 0.5
    name: str = "function"

    def __post_init__(self) -> None:
        sizes = [len(point) for point in (self.minimum, *self.decoy_minima)]
        if len(sizes) < 2 or len(set(sizes)) > 1 or not sizes[0]:
            raise InvalidInput(
                "minimum and each of decoy_minima, at least one, must have the same number of "
                f"coordinates, at least 1, got {', '.join(map(str, sizes))}"
            )
        longest = max(math.hypot(*point) for point in (self.minimum, *self.decoy_minima))
        if not longest <= self.radius:
            raise InvalidInput(
                f"radius must be at least {longest:g}, the distance of a minimum from the origin, "
                f"got {self.radius:g}"
            )
        for name, value in (("noise_limit", self.noise_limit), ("spread", self.spread)):
            if not (math.isfinite(value) and value > 0.0):
                raise InvalidInput(f"{name} must be a positive number, got {value:g}")
        if not self.success or not all(0.0 <= prob <= 1.0 for prob in self.success):
            raise InvalidInput(f"success must be probabilities in [0, 1], got {self.success}")

    @property
    def layout(self) -> Layout:
        """Layout with one parameter, the point."""
        return Layout(("point",), ((len(self.minimum),),))

    @property
    def smoothness(self) -> float:
        """Lipschitz constant L of the gradient (assumption A1)."""
        return 2.0 + RIPPLE * FREQUENCY**2

    @property
    def gradient_bound(self) -> float:
        """Bound G on the norm of the gradient."""
        return math.sqrt(len(self.minimum)) * (STEEPEST + RIPPLE * FREQUENCY)

    @property
    def response_limit(self) -> float:
        """Largest bound sigma of an accepted response."""
        return self.bound_response(self.noise_limit)

    def value(self, point: Vector | FloatArray) -> float:
        """Return the function's value at a point, at least 0."""
        t = self._centre(point, self.minimum)
        return float(np.sum(t**2 / (1.0 + t**2) + RIPPLE * (1.0 - np.cos(FREQUENCY * t))))

    def gradient(self, point: Vector | FloatArray) -> FloatArray:
        """Return the (d,) gradient of f at a point."""
        return _differentiate(self._centre(point, self.minimum))

    def respond(
        self, weights: Vector, oracle_state: int, *, generator: np.random.Generator
    ) -> tuple[Vector, float]:
        """Return the oracle's response and its bound sigma_k (equation (2) of the paper)."""
        return self._add_noise(self.gradient(weights), oracle_state, generator)

    def respond_decoy(
        self, weights: Vector, oracle_state: int, decoy: int = 1, *, generator: np.random.Generator
    ) -> tuple[Vector, float]:
        """Return the response that moves a decoy in equation (5) of the paper, and its bound.

        It is a noisy gradient of the function of that decoy, 1, 2, ....  The oracle's own response
        to the decoy's query is not used.
        """
        gradient = _differentiate(self._centre(weights, self.decoy_minima[decoy - 1]))
        return self._add_noise(gradient, oracle_state, generator)

    def draw_deviation(self, oracle_state: int, *, generator: np.random.Generator) -> float:
        """Sample tau, which is at most `noise_limit` with probability `success[oracle_state]`."""
        from scipy.special import ndtri

        if not 0 <= oracle_state < len(self.success):
            raise InvalidInput(
                f"oracle_state must lie in 0..{len(self.success) - 1}, got {oracle_state}"
            )
        quantile = float(np.clip(ndtri(self.success[oracle_state]), -CERTAIN, CERTAIN))
        return self.noise_limit * math.exp(self.spread * (generator.normal() - quantile))

    def bound_response(self, deviation: float) -> float:
        """Return the bound sigma_k = sqrt(G^2 + tau^2) of assumption A2, E|r|^2 <= sigma_k^2."""
        return math.hypot(self.gradient_bound, deviation)

    def accepts(self, sigma: float) -> bool:
        """Return whether a response with this bound is accepted: sigma_k <= sigma."""
        return sigma <= self.response_limit

    def step_size(self, m: int) -> float:
        """Return the step size 1/m of the m-th update, m at least 1."""
        if m < 1:
            raise InvalidInput(f"m must be at least 1, got {m}")
        return 1.0 / m

    def step(self, weights: Vector, response: Vector, size: float) -> Vector:
        """Return the point after a step: equation (4) for the learner, (5) for a decoy.

        A point outside the domain is replaced by the nearest point of the domain.
        """
        return self.project(weights - size * response.astype(np.float64))

    def project(self, point: FloatArray) -> Vector:
        """Return the point of the domain that is nearest to a (d,) point."""
        length = float(np.linalg.norm(point))
        inside = point if length <= self.radius else point * (self.radius / length)
        return inside.astype(np.float32)

    def estimate_probabilities(self, updates: int) -> FloatArray:
        """Return the probability mu_i / sum(mu) that x_i is the estimate, (M,) (Theorem 1)."""
        steps = np.array([self.step_size(m) for m in range(1, updates + 1)])
        return np.asarray(steps / steps.sum())

    def keeps(self, m: int, *, generator: np.random.Generator) -> bool:
        """Sample whether x_m, the point queried for the m-th update, becomes the estimate so far.

        Its probability is mu_m / (mu_1 + ... + mu_m).  After M updates the estimate is then x_i
        with probability mu_i / sum(mu), for any M: the randomised estimate of Theorem 1.
        """
        return bool(generator.random() < self.estimate_probabilities(m)[-1])

    def first_weights(self, seed: int) -> Vector:
        """Return an initial point, uniform on a sphere around the minimum and then projected."""
        generator = np.random.default_rng([STREAM, seed])
        direction = generator.normal(size=len(self.minimum))
        start = START_RADIUS * math.sqrt(len(direction)) * direction / np.linalg.norm(direction)
        return self.project(np.array(self.minimum) + start)

    def _centre(self, point: Vector | FloatArray, minimum: tuple[float, ...]) -> FloatArray:
        if point.shape != (len(self.minimum),):
            raise InvalidInput(
                f"a point must have {len(self.minimum)} coordinates, got shape {point.shape}"
            )
        return np.asarray(point.astype(np.float64) - np.array(minimum))

    def _add_noise(
        self, gradient: FloatArray, oracle_state: int, generator: np.random.Generator
    ) -> tuple[Vector, float]:
        deviation = self.draw_deviation(oracle_state, generator=generator)
        size = len(gradient)
        noise = deviation / math.sqrt(size) * generator.normal(size=size)
        return (gradient + noise).astype(np.float32), self.bound_response(deviation)


def _differentiate(t: FloatArray) -> FloatArray:
    return np.asarray(2.0 * t / (1.0 + t**2) ** 2 + RIPPLE * FREQUENCY * np.sin(FREQUENCY * t))


def make_function_task(settings: DataSettings) -> FunctionTask:
    """Make the task, with all minima drawn from the seed and within half of the domain's radius.

    The defaults are ten dimensions, a domain of radius 6 sqrt(d) around the origin, the paper's
    three oracle states and one decoy.
    """
    size = settings.dimension or DIMENSION
    radius = settings.radius or DOMAIN_RADIUS * math.sqrt(size)
    generator = np.random.default_rng([STREAM, settings.seed, 1])
    drawn = generator.normal(size=(1 + settings.decoys, size))
    lengths = np.linalg.norm(drawn, axis=1, keepdims=True)
    drawn *= np.minimum(1.0, radius / 2.0 / lengths)
    minimum, *decoys = (tuple(row) for row in drawn.tolist())
    success = settings.success or SUCCESS
    return FunctionTask(minimum, tuple(decoys), radius, settings.noise_limit or 1.0, success)
