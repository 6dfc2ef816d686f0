"""The structured policy gradient (Algorithm 1): a policy searched on experience alone.

- `experience`: `Experience` and its sources, `SimulatedSource` and `ReplayedLog`.
- `rules`: `Rules`, the costs and limits that the search may see, and how to extract them.
- `settings`: `Settings`; the printed, the corrected and the ablated variants.
- `kernel`: the compiled inner loops.
- `result`: `SpgaRun`, what a search returns, and the rounding to two thresholds.
- `search`: `solve_spga`, `search_policy`, `SpgaSearch`.
- `score`: runs compared with the exact optimum.
"""
