"""From recorded rounds to a problem: participation logs, fitted oracles, policies from logs.

- `log`: participation logs; `read_log`, `ParticipationLog`.
- `oracle`: the oracle fitted to a log, with intervals; `fit_oracle`, `sample_oracles`.
- `markov`: a test of the Markov property; `check_markov`.
- `problem`: the problem file of a fitted oracle; `format_problem`.
- `window`: the problem that the latest rounds of a run describe; `fit_window`, `count_outdated`.
- `policy`: a policy searched on a log; `search_on_log`.
"""
