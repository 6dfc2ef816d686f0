"""What happens in a run, from its settings to its folder.

Start with `round`, the only loop.  `settings` reads the run file, `train` makes the run and carries
it out, `state` is what one round hands to the next, `engine` says who answers (`simulated` does it
in this process), `participation` who takes part and when that is enough, `queue` which updates are
owed, `records`, `folder` and `checkpoint` what is kept.
"""
