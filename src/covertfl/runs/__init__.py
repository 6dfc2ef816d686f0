"""A run, from its settings to its folder.

`settings`: `RunSettings`, all that defines a run, and the sections of a run file.
`run_file`: `read_run`, `build_run`, `format_run` and `find_change` for run files.
`summary`: `RunSummary`, the results of a finished run, and `read_summary`.
`public`: `PublicTranscript`, what an eavesdropper may read of a run.
`checkpoint`: `Checkpoint`, `CheckpointDraft` and `read_checkpoint`.
`weight_files`: `WeightFiles`, the weights that were sent, and which of them are kept.
`files`: `find_runs` and `read_lines`, where runs are and how their records are read.
`folder`: `RunFolder`, the folder that a run is recorded in.
`replay`: rounds of a participation log, with the states of the problem; `RecordedRounds`.
`participation`: `SimulatedParticipation`; acceptance; measured success probabilities.
`queue`: `UpdateQueue`, the updates that are owed, and `read_arrivals` for files of arriving ones.
`policy`: `make_run_policy`, the policy of a run.
`live`: `refresh_live` and `make_live_policy`, a policy that is refreshed during a run.
`learner`: `LearnerState`, the true trajectory and the decoys', and how they move.
`responder`: `Query`, `Outcome` and `Work`, what passes between a run and its clients.
`federation`: `Federation`, what does not change during a run, and `RunState`, what does.
`generations`: `Generation`, the schedule of exchangeable trajectories, and how they move.
`levelling`: `choose_level`, which replies a move of an exchangeable run averages.
`packing`: `pack_state` and `unpack_state`, the state of a run as a checkpoint.
`actions`: `decide`, which trajectory is queried in a round.
`records`: `Records`, what a run needs of its records; `MemoryRecords`; `record_round`, `summarise`.
`rounds`: `run_rounds`, the rounds of a run as a generator of work (equation (1) of the paper), and
`Intake`, who may change a run between two rounds; `drive`, which answers what runs request.
`clients`: `ClientResponder`, clients with data that answer queries.
`decoys`: `make_run_decoy`, the decoy or the replicas of a run, and the secret of a federation.
`task`: `find_task`, the task of a run.
`build`: `build_federation` and `KernelCache`, from settings to a federation.
`progress`: `prepare_run`, `watch_run`, `RunProgress` and the `OnRound` callback.
"""
