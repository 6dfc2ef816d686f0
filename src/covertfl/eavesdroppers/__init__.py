"""Who listens: estimators of the true model that see the queries and nothing of the learner.

- `eavesdropper`: the protocol, what it is given (`SeenQuery`, `Means`) and the base class
- `registry`: the eavesdroppers by name, and what each needs
- `listeners`, `owners`: the same by tier, those that own nothing and those that do
- `separation`: which trajectory a query belongs to
- `memory`: what several eavesdroppers of a run need, computed once
- `majority` (the paper's), `minority`, `change_point`: from which trajectory is queried when
- `likelihood`: the best of these, which knows problem and policy
- `moves`: what those that look at moves share
- `early_stop`, `repeat`, `step_shape`, `last_layer`, `rounding`, `map_spectrum`, `two_runs`: from
  how the weights move
- `attendance`: from how their lengths go with the rounds in which few clients took part
- `own_data`: labelled data of an eavesdropper's own
- `validation`, `anti_validation`, `fine_tune`, `ensemble`, `train_alone`: from what weights are
  worth on these data
- `own_replies`: replies of an eavesdropper that is a client
- `alignment`, `first_moves`, `reply_length`, `mark`: from how these compare with the moves
- `fresh_labels`, `unlabelled`: from data that the learner does not know
- `trained`: a classifier on the figures that all of these compute
"""
