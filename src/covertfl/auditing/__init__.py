"""What an eavesdropper could have learned from the queries of finished runs.

Start with `folders` (`audit_folders`) and `run`, which loads and audits one run.  `overheard` reads
and separates the queries, `means` says what an eavesdropper may hold besides, `threats` and
`summary` are the findings, and `rehearsal` repeats a run's settings in memory to judge them.
"""
