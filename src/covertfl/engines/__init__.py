"""Who answers the queries.

- `simulated`: `run_together`, which trains the clients of all runs in one process
- `flower`: the engine on a Flower grid
"""
