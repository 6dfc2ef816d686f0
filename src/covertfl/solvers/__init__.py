"""How the decision is made, and what is proven of it.

- `constrained`: the constrained queue problem (9) solved exactly; `solve_queue`, `QueueSolution`.
- `capacity`: the room that an automatic capacity needs; `find_first_capacity`, `find_cheapest`.
- `multiplier`: the critical multiplier and the mixture of Theorem 3; `Mixing`.
- `average_cost`: the Lagrangian problem (10); `solve_average_cost`.
- `occupation_lp`: problem (9) as a linear program, an independent check; `solve_occupation_lp`.
- `backward_induction`: the finite horizon (7) solved exactly; `solve_horizon`, `HorizonSolution`.
- `minority`: finishing with learning a strict minority; `solve_minority`, `rounds_needed`.
- `structure`: assumptions and monotonicity of a solution; `examine_queue_solution`,
  `examine_horizon_solution`.
- `spga`: the structured policy gradient (Algorithm 1).
"""
