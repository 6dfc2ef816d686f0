"""A function that is minimised from noisy gradients: the model of section 2 of the paper.

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
from covertfl.kernels.job import Vector

RIPPLE, FREQUENCY = 0.05, 6.0  # a and b
STEEPEST = 3.0 * math.sqrt(3.0) / 8.0  # largest derivative of t^2 / (1 + t^2), at 1 / sqrt(3)
SUCCESS = (0.1, 0.43, 0.95)  # of the paper's three oracle states
DIMENSION = 10
START_RADIUS = 2.0  # times sqrt(d), as the next
DOMAIN_RADIUS = 6.0
CERTAIN = 8.0  # standard deviations beyond which a probability counts as 0 or 1
STREAM = 0x66756E63  # separates its random numbers from those of others with the same seed


@dataclass(frozen=True)
class NoisyFunction:
    """A function, and an oracle that responds to queries with noisy gradients.

    Parameters
    ----------
    minimum : (d,) minimiser of the function
    radius : of the domain, a ball around the origin that holds the minimiser; infinite for none
    noise_limit : largest standard deviation of the noise in an accepted response, positive
    success : probability by oracle state that a response is accepted, each in [0, 1]
    spread : standard deviation of log(tau), positive
    """

    minimum: tuple[float, ...]
    radius: float = math.inf
    noise_limit: float = 1.0
    success: tuple[float, ...] = SUCCESS
    spread: float = 0.5

    def __post_init__(self) -> None:
        distance = math.hypot(*self.minimum)
        if not distance <= self.radius:
            raise InvalidInput(
                f"radius must be at least {distance:g}, the distance of the minimum from the "
                f"origin, got {self.radius:g}"
            )
        for name, value in (("noise_limit", self.noise_limit), ("spread", self.spread)):
            if not (math.isfinite(value) and value > 0.0):
                raise InvalidInput(f"{name} must be a positive number, got {value:g}")
        if not self.success or not all(0.0 <= prob <= 1.0 for prob in self.success):
            raise InvalidInput(f"success must be probabilities in [0, 1], got {self.success}")

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
        t = self._centre(point)
        return float(np.sum(t**2 / (1.0 + t**2) + RIPPLE * (1.0 - np.cos(FREQUENCY * t))))

    def gradient(self, point: Vector | FloatArray) -> FloatArray:
        """Return the (d,) gradient of f at a point."""
        return _differentiate(self._centre(point))

    def respond(
        self, weights: Vector, oracle_state: int, *, generator: np.random.Generator
    ) -> tuple[Vector, float]:
        """Return the oracle's response and its bound sigma_k (equation (2) of the paper)."""
        gradient, size = self.gradient(weights), len(self.minimum)
        deviation = self.draw_deviation(oracle_state, generator=generator)
        noise = deviation / math.sqrt(size) * generator.normal(size=size)
        return (gradient + noise).astype(np.float32), self.bound_response(deviation)

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

    def step(self, weights: Vector, response: Vector, size: float) -> Vector:
        """Return the point after a step, equation (4).

        A point outside the domain is replaced by the nearest point of the domain.
        """
        return self.project(weights - size * response.astype(np.float64))

    def project(self, point: FloatArray) -> Vector:
        """Return the point of the domain that is nearest to a (d,) point."""
        length = float(np.linalg.norm(point))
        inside = point if length <= self.radius else point * (self.radius / length)
        return inside.astype(np.float32)

    def first_weights(self, seed: int) -> Vector:
        """Return an initial point, uniform on a sphere around the minimum and then projected."""
        generator = np.random.default_rng([STREAM, seed])
        direction = generator.normal(size=len(self.minimum))
        start = START_RADIUS * math.sqrt(len(direction)) * direction / np.linalg.norm(direction)
        return self.project(np.array(self.minimum) + start)

    def _centre(self, point: Vector | FloatArray) -> FloatArray:
        if point.shape != (len(self.minimum),):
            raise InvalidInput(
                f"a point must have {len(self.minimum)} coordinates, got shape {point.shape}"
            )
        return np.asarray(point.astype(np.float64) - np.array(self.minimum))


def _differentiate(t: FloatArray) -> FloatArray:
    return np.asarray(2.0 * t / (1.0 + t**2) ** 2 + RIPPLE * FREQUENCY * np.sin(FREQUENCY * t))


def make_function(seed: int, size: int = DIMENSION) -> NoisyFunction:
    """Make a function of `size` coordinates whose minimum is drawn from the seed.

    The domain has radius 6 sqrt(d), and the minimum lies within half of it.
    """
    radius = DOMAIN_RADIUS * math.sqrt(size)
    drawn = np.random.default_rng([STREAM, seed, 1]).normal(size=size)
    drawn *= min(1.0, radius / 2.0 / float(np.linalg.norm(drawn)))
    return NoisyFunction(tuple(drawn.tolist()), radius)
