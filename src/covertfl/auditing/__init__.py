"""What an eavesdropper could have learned from the queries of finished runs.

`overheard`   the queries of a public folder, separated into trajectories
`run`         one run's folder loaded and audited: `audit_run`
`coalitions`  clients that pool the queries they received
`mismatch`    a test of the recorded rounds against the problem's oracle
`means`       what an eavesdropper of a run may own and know besides the queries
`baselines`   what it would have without listening, from which its gain counts
`threats`     one eavesdropper's findings in single runs, and over several: `Finding`, `Threat`
`simulated`   runs that are simulated in memory
`rehearsal`   what eavesdroppers get from simulated runs of the same settings, kept and reused
`summary`     the audits of several runs combined, and the best of each tier: `AuditSummary`
`folders`     from folders to an `AuditSummary`: `audit_folders`, `write_audit`
`matrix`      every policy with every decoy, trained, audited and drawn
"""
