"""Who listens: estimators of the true model that see the queries and nothing of the learner.

- `eavesdropper`: the protocol, what it is given (`SeenQuery`, `Means`) and the base class
- `registry`: the eavesdroppers by name, and what each needs
- `separation`: which trajectory a query belongs to
- `own_data`: evaluating and training weights on labelled data of one's own

By schedule, from which trajectory is queried when:

- `majority`: the paper's proportional sampling
- `minority`: its opposite
- `likelihood`: the best one that knows problem and policy
- `change_point`: the trajectory whose share of queries falls

By trajectory, from how the weights move:

- `early_stop`: the trajectory that stopped moving first
- `repeat`: the trajectory whose queries are repeated
- `step_shape`: the trajectory with the smoother steps
- `alignment`: the trajectory that follows one's own replies

By content, from labelled data of one's own:

- `validation`: the trajectory with the lowest loss
- `fine_tune`: the same, trained further
- `ensemble`: a mixture of trajectories
- `train_alone`: the baseline that ignores the queries
"""
