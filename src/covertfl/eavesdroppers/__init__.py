"""Who listens: estimators of the true model that see the queries and nothing of the learner.

- `eavesdropper`: the protocol, what it is given (`SeenQuery`, `Means`) and the base class
- `registry`: the eavesdroppers by name, and what each needs; `kinds`: those without training
- `listeners`, `owners`, `clients`: by what they hold, nothing, data, or a place among the clients
- `likelihood`: the best that queries alone allow, for whoever knows problem and policy
- `trained`: a classifier on the figures that all of these compute
- `moves`: what several of them share
- `separation`: which trajectory a query belongs to
"""
