"""What is to be decided: the oracle, the problem and the policy.

- `arguments`: checks of arguments that raise `InvalidInput`.
- `oracle`: `Oracle`, its stationary distribution, and its order by dominance.
- `states`: `OracleStates`, how the state of a round is read from its data.
- `problem`: `FiniteHorizon`, `QueueProblem`, `LearningCost`, `Action`, costs of a round, arrivals.
- `policy`: `Policy`, `Observation`, tables of policies, and the paper's families of them.
- `problem_file`: problem files in TOML, and presets.
- `policy_file`: policy files in JSON.
- `presets`: the problem files that ship with covertfl.
"""
