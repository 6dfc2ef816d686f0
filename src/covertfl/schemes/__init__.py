"""What clients are sent, and what their replies do: the schemes.

Start with `scheme`, the protocol that runs, engines, records, service and audit know.  `scheduled`
is the paper's scheme, a policy that decides when to send a decoy; `exchangeable` trains K replicas
of which one is true.  `registry` finds a scheme by its name in a run file.
"""
