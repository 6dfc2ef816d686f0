"""A run, from its settings to its folder.

`settings`: `RunSettings`, all that defines a run, and the sections of a run file.
`run_file`: `read_run`, `build_run`, `format_run` and `find_change` for run files.
`summary`: `RunSummary`, the results of a finished run, and `read_summary`.
`lines`: `read_lines` for files with one JSON object on each line.
`public`: `PublicTranscript`, what an eavesdropper may read of a run.
`checkpoint`: `Checkpoint` and `read_checkpoint`.
`locate`: `find_runs` and the names of files in a run's folder.
`folder`: `RunFolder`, the folder that a run is recorded in.
`participation`: who takes part in a round, when it is accepted, and measured success probabilities.
`arrivals`: `read_arrivals` for files of arriving updates.
`queue`: `UpdateQueue`, the updates that are owed.
`world`: `World`, the oracle states and attendance of a simulated federation.
`policy`: `make_run_policy`, the policy of a run.
`task`: `find_training_task`, the task of a run.
`learner`: `LearnerState`, the true trajectory and the decoys', and how they move.
`state`: `RunState`, the state between two rounds, and its form in a checkpoint.
`federation`: `Federation`, the parts of a run that do not change, and `start_run`.
`responder`: `Responder`, those who answer queries, with `Query` and `Outcome`.
`actions`: `decide`, which trajectory is queried in a round.
`update`: `update_trajectories`, which trajectory moves and how (equation (1) of the paper).
`records`: `record_round` and `summarise`, what is written about a run.
`rounds`: `run_rounds`, the rounds of a run as a generator of work.
`driver`: `drive`, which runs generators and answers their requests in batches.
`clients`: `ClientResponder`, clients with data that answer queries.
`function`: `FunctionResponder`, a noisy function that answers queries.
`build`: `build_federation` and `KernelCache`, from settings to a federation.
`opening`: `prepare_run`, a federation with its folder, new or resumed.
`progress`: `watch_run`, `RunProgress` and the `OnRound` callback.
"""
