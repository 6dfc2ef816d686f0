"""What is trained: a model, the clients' data, the public set and the validation set.

- `task`: what a task is (`TrainingTask`), and what it is made from (`DataSettings`)
- `scores`: accuracy, balanced accuracy, AUC and F1 of a model's answers
- `registry`: the tasks by name (`TASKS`, `make_task`)
- `toxicity`: the paper's classification of comments
- `mnist`: the paper's image benchmark
- `digits`: small images that come with scikit-learn
- `embeddings`: a user's labelled vectors
- `labelled_data`: a task from one set of labelled examples
- `splits`: which rows clients, public set and validation set hold
- `training_rows`: which rows a client trains on, classes balanced
- `public_map`: the linear map that stands in front of a model (`PublicMap`)
- `pivot`: the first trained layer of a model, if it is linear in the inputs
- `models`: the models of the tasks by name
- `architecture`: a trained model as JSON: its layers, and all that is needed to use it
- `inputs`: what the inputs of a model are: encoder, standardisation (`Inputs`)
- `text`: embedding of text
- `text_file`: reading of text, with or without labels
"""
