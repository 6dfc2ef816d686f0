"""What an eavesdropper could have learned from the queries of finished runs.

`overheard`   the queries of a public folder, separated into trajectories
`run`         one run's folder loaded and audited: `audit_run`
`coalitions`  clients that pool the queries they received
`mismatch`    a test of the recorded rounds against the problem's oracle
`threats`     one eavesdropper's findings in single runs, and over several: `Finding`, `Threat`
`summary`     the audits of several runs combined: `AuditSummary`
`folders`     from folders to an `AuditSummary`: `audit_folders`, `write_audit`
`matrix`      every policy with every decoy, trained, audited and drawn
"""
