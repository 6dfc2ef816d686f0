"""Who listens: estimators of the true model that see the queries and nothing of the learner.

- `eavesdropper`: the protocol, what it is given (`SeenQuery`, `Means`) and the base class
- `registry`: the eavesdroppers by name, and what each needs
- `separation`: which trajectory a query belongs to
- `by_schedule`: majority (the paper's), minority and change point, from what is queried when
- `likelihood`: the best one by schedule, which knows problem and policy
- `by_movement`: early stop, repeat, step shape and alignment, from how the weights move
- `by_content`: validation, fine-tune, ensemble and train-alone, from labelled data of their own
"""
