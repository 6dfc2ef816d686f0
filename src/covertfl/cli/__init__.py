"""How the command line works: each command parses, calls and prints.

- `app`: the application and `main`, which turns exceptions into exit statuses
- `solve`, `plan`, `fit`, `presets`: commands on problems
- `train`, `deploy_local`, `federation`, `export`, `predict`, `embed`: commands on runs and data
- `request`, `serve`, `status`, `versions`: commands on a running service
- `audit`, `report`, `demo`: commands on results
- `group`: groups of commands, their help and their suggestions
- `options`: arguments and options that several commands share
- `output`: JSON and tables on standard output, remarks and progress on standard error

Commands import what they need when they are called, so that the command line starts quickly.
"""
