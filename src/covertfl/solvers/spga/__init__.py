"""The structured policy gradient (Algorithm 1): a policy searched on experience alone.

Start with `search` (`solve_spga`).  `experience` is what it learns from, `rules` all that it knows
of a problem, `settings` its printed, corrected and ablated variants, `kernel` its compiled loops.
"""
