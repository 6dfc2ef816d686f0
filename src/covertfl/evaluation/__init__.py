"""What a policy does: its costs, its exposure, and what it reveals.

- `chain`: the Markov chain of a queue under a policy, solved exactly; `solve_chain`.
- `queue`: long-run averages of a queue policy; `evaluate_queue_policy`, `simulate_queue_policy`.
- `horizon`: expected costs of a finite-horizon policy; `evaluate_horizon_policy`,
  `simulate_horizon_policy`, and the queries of the greedy policy.
- `bounds`: what no policy of a queue can improve on.
- `schedule`: success of the best eavesdropper that knows the policy; `bound_best_eavesdropper`.
"""
