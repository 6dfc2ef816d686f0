"""How the command line works: each command parses, calls and prints.

- `app`: the application and `main`, which turns exceptions into exit statuses
- `options`: arguments and options that several commands share
- `progress`: progress bars on standard error
- `output`: JSON on standard output, remarks on standard error
- `solve`: the command `solve`
- `plan`: the command `plan`
- `fit`: the command `fit`
- `presets`: the command `presets`
- `train`: the command `train`
- `deploy_local`: the command `deploy-local`
- `export`: the command `export`
- `embed`: the command `embed`
- `audit`: the command `audit`
- `report`: the command `report`
- `demo`: the command `demo`
- `reproduce`: the command `reproduce`

Commands import what they need when they are called, so that the command line starts quickly.
"""
