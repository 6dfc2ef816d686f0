"""How a Flower federation of real processes is run on this machine.

- `bundle`: build the app bundle that every node gets, and refuse one that reveals the scheme;
  `OwnApp`, a user's Flower project that is run instead of a built-in task.
- `certificates`: make the TLS certificates and node keys of a federation.
- `checks`: refuse runs that cannot be deployed; find those in which no round can be accepted.
- `control`: calls to a SuperLink's control interface.
- `federation`: `LocalFederation`, a SuperLink and SuperNodes on loopback.
- `fork`: end a forked process with the status of its work.
- `processes`: `SupervisedProcesses`, the processes of a federation by name.
- `progress`: progress and failures, written by the server app and read by its owner.
- `roles`: what the processes do: SuperLink, SuperNode, SuperExec.
- `run`: `Deployment` and `deploy`, a run in a local federation.
- `server`: settings of a server app from its environment variables; that of a built-in task.
- `supervisor`: the process that all others are forked from, and end with.
"""
