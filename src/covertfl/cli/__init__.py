"""How the command line works: each command parses, calls and prints.

- `app`: the application and `main`, which turns exceptions into exit statuses
- `problems`: `solve`, `plan`, `fit` and `presets`
- `runs`: `train`, `federation`, `export`, `predict` and `embed`; `deploy_local`
- `service`: `serve`, `request`, `status` and `versions`
- `results`: `audit`, `report` and `demo`
- `group`: groups of commands, their help and their suggestions
- `options`: arguments and options that several commands share
- `output`: JSON and tables on standard output, remarks and progress on standard error

Commands import what they need when they are called, so that the command line starts quickly.
"""
