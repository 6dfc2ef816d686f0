"""How a Flower federation of real processes is run on this machine.

- `bundle`: build the app bundle that every node gets, and refuse one that reveals the scheme;
  `OwnApp`, a user's Flower project that is run instead of a built-in task.
- `certificates`: make the TLS certificates and node keys of a federation.
- `checks`: refuse runs that cannot be deployed; find those in which no round can be accepted.
- `federation`: `LocalFederation`, a SuperLink and SuperNodes on loopback, and calls to its control
  interface.
- `gate`: refuse calls of a SuperLink without the owner's token, requests that are too large, and
  messages that are not their node's own.
- `processes`: `SupervisedProcesses`, the processes of a federation by name.
- `rights`: client apps that run as another user than the owner.
- `roles`: what the processes do: SuperLink, SuperNode, SuperExec.
- `run`: `Deployment` and `deploy`, a run in a local federation.
- `scratch`: temporary folders, which are removed after all processes that used them were killed.
- `server`: settings of a server app from its environment variables; that of a built-in task; its
  progress and failures, which its owner reads.
- `supervisor`: the process that all others are forked from, and end with.
"""
