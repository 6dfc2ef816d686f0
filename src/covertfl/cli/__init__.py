"""How the command line works: each command parses, calls and prints.

- `app`: the application and `main`, which turns exceptions into exit statuses
- `problems`: the commands `solve`, `plan`, `fit` and `presets`
- `runs`: the commands `train`, `deploy-local`, `export` and `embed`
- `results`: the commands `audit`, `report`, `demo` and `reproduce`
- `options`: arguments and options that several commands share
- `output`: JSON and tables on standard output, remarks and progress bars on standard error

Commands import what they need when they are called, so that the command line starts quickly.
"""
