"""A run, from its settings to its folder.

Start with `rounds`, which plays one round after another (equation (1) of the paper).  Before it,
`settings` and `run_file` say what a run is, and `build` assembles its parts; beside it, `actions`
decides which trajectory is queried, `clients` answers, `learner` and `generations` move the
trajectories; after it, `records`, `folder` and `checkpoint` remember, so that a run can be resumed.
"""
