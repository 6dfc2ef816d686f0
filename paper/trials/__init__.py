"""How the paper's experiments run many covert trainings side by side, without files.

- `setups`: the federations of the experiments, and their data
- `trial`: `Trial`, one run, prepared and with its rounds drawn when it is first used
- `schedule`: the rounds of a run, drawn without weights, and the eavesdropper's estimate
- `walks`: the training of one trajectory as a generator, and what it can request
- `batches`: `run_walks`, which answers the requests of many walks in batches
- `scorer`: accuracies of many weights
- `covert_runs`: `CovertRuns`, learner and eavesdropper of many runs, and the rows of tables
- `cells`: `CellStore`, finished parts in files
- `averages`: means and shares over seeds with their intervals
"""
