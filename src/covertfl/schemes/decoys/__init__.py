"""What the scheme `scheduled` sends instead of the true weights: how a decoy trajectory moves.

- `decoy`: the protocol, and what a decoy may use when it moves (`DecoyView`)
- `registry`: the decoys by name, plug-ins included (`DECOYS`, `make_decoy`)
- `public`: trained on the public set; the paper's decoy
- `mirrored`: moves against the replies
- `random_weights`: a random walk
- `adversarial`: fits the public set and contradicts the learner elsewhere
"""
