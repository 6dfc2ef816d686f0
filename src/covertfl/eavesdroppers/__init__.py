"""Who listens: estimators of the true model that see the queries and nothing of the learner.

- `eavesdropper`: the protocol, what it is given (`SeenQuery`, `Means`) and the base class
- `registry`: the eavesdroppers by name, and what each needs
- `separation`: which trajectory a query belongs to
- `majority` (the paper's), `minority`, `change_point`: from which trajectory is queried when
- `likelihood`: the best of these, which knows problem and policy
- `early_stop`, `repeat`, `step_shape`, `alignment`: from how the weights move
- `own_data`: labelled data of an eavesdropper's own
- `validation`, `fine_tune`, `ensemble`, `train_alone`: from what weights are worth on these data
"""
