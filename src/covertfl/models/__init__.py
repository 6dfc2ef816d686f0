"""A trained model in use.

`export` writes the true weights of a run to a file: `export_model`, `ExportedModel`.
"""
