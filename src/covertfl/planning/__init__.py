"""What is possible, and at what price.

- `horizon`: `plan_horizon`, which returns a `HorizonPlan`: the probability of finishing covertly
- `queue`: `plan_queue`, which returns a `QueuePlan`: stability, least exposure, frontier
- `trajectories`: `price_horizon`, `price_queue`: what K exchangeable trajectories cost
- `exposure`: `find_limit_for_exposure` and `find_scale_for_exposure`, the inverse question
- `updates`: how many updates reach a given accuracy
"""
