"""What is trained: a model, the clients' data, the public set and the validation set.

`task` says what a task is, `registry` has the tasks by name: `toxicity` and `mnist` (the paper's),
`digits`, and a user's own vectors in `embeddings`.  `data` divides one set of examples among
clients, public set and validation set; `models` has the models, `scores` rates them.  `public_map`
stands in front of the model where a scheme needs it; `text` and `text_file` are for comments.
"""
