"""Minimise a function from noisy gradients: the model of section 2, without clients.

The function is smooth and not convex, the same in every coordinate,

    f(x) = sum_i  t_i^2 / (1 + t_i^2) + a (1 - cos(b t_i)),   t = x - minimum,

with its least value 0 at `minimum`, further local minima, a bounded gradient and a gradient
whose Lipschitz constant is L = 2 + a b^2 (both terms bend most at the minimum).

=====================  ================  ====================================================
name                   symbol            meaning
=====================  ================  ====================================================
`respond`              r, (2)            gradient at the query plus noise, and its bound
`bound_response`       sigma_k           sqrt(G^2 + tau^2), E|r|^2 <= sigma_k^2 (A2): G bounds
                                         |grad f|, tau^2 is the variance of the noise
`accepts`              1(s_k <= s)       whether a response may be used
`step`                 (4), (5)          x - r / m, for the m-th update of either trajectory
`keeps`                mu_i / sum(mu)    the randomised estimate of Theorem 1
=====================  ================  ====================================================

The noise's standard deviation tau is log-normal and its scale follows the oracle state, so that a
response is accepted with the chance that `success` gives for the state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.errors import InvalidInput
from covertfl.kernels.weights import Layout, Vector
from covertfl.tasks.data_settings import DataSettings

RIPPLE, FREQUENCY = 0.05, 6.0  # a and b
STEEPEST = 3.0 * math.sqrt(3.0) / 8.0  # largest slope of t^2 / (1 + t^2), at 1 / sqrt(3)
SUCCESS = (0.1, 0.43, 0.95)  # of the paper's three oracle states
START_RADIUS = 2.0
SURE = 8.0  # standard deviations beyond which a chance counts as 0 or 1
STREAM = 0x66756E63  # keeps the start apart from other parts' draws with the same seed


@dataclass(frozen=True)
class FunctionTask:
    """A function, and an oracle that answers queries with noisy gradients.

    Parameters
    ----------
    minimum : (d,) where the function is least
    decoy_minimum : (d,) where the decoy's function, of the same shape, is least
    noise_limit : largest noise standard deviation of a response that is accepted, positive
    success : chance by oracle state that a response is accepted, each in [0, 1]
    spread : of the logarithm of the noise's standard deviation, positive
    name : of the task
    """

    minimum: tuple[float, ...]
    decoy_minimum: tuple[float, ...]
    noise_limit: float = 1.0
    success: tuple[float, ...] = SUCCESS
    spread: float = 0.5
    name: str = "function"

    def __post_init__(self) -> None:
        if not self.minimum or len(self.minimum) != len(self.decoy_minimum):
            raise InvalidInput(
                "minimum and decoy_minimum must be points of one space, got "
                f"{len(self.minimum)} and {len(self.decoy_minimum)} numbers"
            )
        for name, value in (("noise_limit", self.noise_limit), ("spread", self.spread)):
            if not (math.isfinite(value) and value > 0.0):
                raise InvalidInput(f"{name} must be a positive number, got {value:g}")
        if not self.success or not all(0.0 <= prob <= 1.0 for prob in self.success):
            raise InvalidInput(f"success must be chances in [0, 1], got {self.success}")

    @property
    def layout(self) -> Layout:
        """One parameter, the point."""
        return Layout(("point",), ((len(self.minimum),),))

    @property
    def smoothness(self) -> float:
        """L, the Lipschitz constant of the gradient."""
        return 2.0 + RIPPLE * FREQUENCY**2

    @property
    def gradient_bound(self) -> float:
        """G, which |grad f| does not exceed anywhere."""
        return math.sqrt(len(self.minimum)) * (STEEPEST + RIPPLE * FREQUENCY)

    @property
    def response_limit(self) -> float:
        """sigma, the largest bound of a response that is accepted."""
        return self.bound_response(self.noise_limit)

    def value(self, point: Vector | FloatArray) -> float:
        """The function at a point; never below 0, which it is at `minimum`."""
        t = self._centre(point, self.minimum)
        return float(np.sum(t**2 / (1.0 + t**2) + RIPPLE * (1.0 - np.cos(FREQUENCY * t))))

    def gradient(self, point: Vector | FloatArray) -> FloatArray:
        """The gradient of f at a point, (d,)."""
        return _differentiate(self._centre(point, self.minimum))

    def respond(
        self, weights: Vector, oracle_state: int, *, generator: np.random.Generator
    ) -> tuple[Vector, float]:
        """The oracle's answer to a query (2): a noisy gradient, and the bound sigma_k on it.

        Parameters
        ----------
        weights : (d,) the point that is queried
        oracle_state : 0 .. len(success) - 1
        """
        deviation = self.draw_deviation(oracle_state, generator=generator)
        noise = self._draw_noise(deviation, generator)
        response = (self.gradient(weights) + noise).astype(np.float32)
        return response, self.bound_response(deviation)

    def respond_decoy(
        self, weights: Vector, oracle_state: int, *, generator: np.random.Generator
    ) -> tuple[Vector, float]:
        """What moves the decoy in (5): a noisy gradient of the function around `decoy_minimum`.

        It has the law of an answer of the oracle, but for the place of the minimum; the oracle's
        own answer to the decoy's query is not used.
        """
        deviation = self.draw_deviation(oracle_state, generator=generator)
        slope = _differentiate(self._centre(weights, self.decoy_minimum))
        response = (slope + self._draw_noise(deviation, generator)).astype(np.float32)
        return response, self.bound_response(deviation)

    def draw_deviation(self, oracle_state: int, *, generator: np.random.Generator) -> float:
        """tau, at most `noise_limit` with the chance `success[oracle_state]`."""
        from scipy.special import ndtri

        if not 0 <= oracle_state < len(self.success):
            raise InvalidInput(
                f"oracle_state must lie in 0..{len(self.success) - 1}, got {oracle_state}"
            )
        quantile = float(np.clip(ndtri(self.success[oracle_state]), -SURE, SURE))
        return self.noise_limit * math.exp(self.spread * (generator.normal() - quantile))

    def bound_response(self, deviation: float) -> float:
        """sigma_k = sqrt(G^2 + tau^2), the bound of (A2)."""
        return math.hypot(self.gradient_bound, deviation)

    def accepts(self, sigma: float) -> bool:
        """Whether a response with this bound may be used: sigma_k <= sigma."""
        return sigma <= self.response_limit

    def step_size(self, m: int) -> float:
        """1/m for the m-th update, m at least 1."""
        if m < 1:
            raise InvalidInput(f"updates are counted from 1, got {m}")
        return 1.0 / m

    def step(self, weights: Vector, response: Vector, m: int) -> Vector:
        """The m-th update of a trajectory, (4) for the learner and (5) for a decoy."""
        return (weights - self.step_size(m) * response.astype(np.float64)).astype(np.float32)

    def estimate_probabilities(self, updates: int) -> FloatArray:
        """Chance of each iterate x_1 .. x_M to be the estimate: mu_i / sum(mu) (Theorem 1)."""
        steps = np.array([self.step_size(m) for m in range(1, updates + 1)])
        return np.asarray(steps / steps.sum())

    def keeps(self, m: int, *, generator: np.random.Generator) -> bool:
        """Whether x_m, the point queried for the m-th update, becomes the estimate so far.

        It does with chance mu_m / (mu_1 + ... + mu_m).  After M updates the estimate is then x_i
        with chance mu_i / sum(mu), whatever M turns out to be.
        """
        return bool(generator.random() < self.estimate_probabilities(m)[-1])

    def first_weights(self, seed: int) -> Vector:
        """Where a trajectory begins: uniform on a sphere around the minimum."""
        generator = np.random.default_rng([STREAM, seed])
        direction = generator.normal(size=len(self.minimum))
        start = START_RADIUS * math.sqrt(len(direction)) * direction / np.linalg.norm(direction)
        return np.asarray(np.array(self.minimum) + start, dtype=np.float32)

    def _centre(self, point: Vector | FloatArray, minimum: tuple[float, ...]) -> FloatArray:
        if point.shape != (len(self.minimum),):
            raise InvalidInput(f"a point has {len(self.minimum)} numbers, got shape {point.shape}")
        return np.asarray(point.astype(np.float64) - np.array(minimum))

    def _draw_noise(self, deviation: float, generator: np.random.Generator) -> FloatArray:
        size = len(self.minimum)
        return np.asarray(deviation / math.sqrt(size) * generator.normal(size=size))


def _differentiate(t: FloatArray) -> FloatArray:
    return np.asarray(2.0 * t / (1.0 + t**2) ** 2 + RIPPLE * FREQUENCY * np.sin(FREQUENCY * t))


def make_function_task(settings: DataSettings) -> FunctionTask:
    """The function in ten dimensions, least at a point drawn by the seed; so is the decoy's."""
    generator = np.random.default_rng([STREAM, settings.seed, 1])
    minimum, decoy = generator.normal(size=(2, 10))
    return FunctionTask(tuple(minimum.tolist()), tuple(decoy.tolist()))
