"""A trained model in use.

- `export`: the true model of a run, written to a file with its model card (`export_model`)
- `contents`: the file of an exported model: weights and facts, packed and read
- `load`: an exported model that predicts (`load_model`, `Model`, `Predictions`)
- `predict`: files of inputs, scored (`predict_file`)
"""
