"""A trained model in use.

`export`: `export_model` writes the true weights of a run to a file and returns an `ExportedModel`;
`load_weights` reads them back.
"""
