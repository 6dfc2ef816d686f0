"""A run, from its settings to its folder.

`settings`: `RunSettings`, all that defines a run, and the sections of a run file.
`run_file`: `read_run`, `build_run`, `format_run` and `find_change` for run files.
`summary`: `RunSummary`, the results of a finished run, and `read_summary`.
`lines`: `read_lines` for files with one JSON object on each line.
`public`: `PublicTranscript`, what an eavesdropper may read of a run.
`checkpoint`: `Checkpoint` and `read_checkpoint`.
`folder`: `RunFolder`, the folder that a run is recorded in.
`participation`: who takes part in a round, when it is accepted, and measured success probabilities.
`arrivals`: `read_arrivals` for files of arriving updates.
`queue`: `UpdateQueue`, the updates that are owed.
`world`: `World`, the oracle states and attendance of a simulated federation.
`policy`: `make_run_policy`, the policy of a run.
`task`: `find_training_task`, the task of a run.
`learner`: `LearnerState`, the true trajectory and the decoys', and how they move.
`state`: `RunState`, the state between two rounds, and its form in a checkpoint.
`federation`: `Federation` and `run_rounds`, the rounds of a run.
`clients`: `ClientResponder`, clients with data that answer queries.
`function`: `FunctionResponder`, a noisy function that answers queries.
`build`: `build_federation` and `KernelCache`, from settings to a federation.
`opening`: `prepare_run`, a federation with its folder, new or resumed.
`progress`: `watch_run`, `RunProgress` and the `OnRound` callback.
"""
