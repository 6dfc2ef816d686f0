"""How a Flower federation of real processes is run on this machine.

Start with `run` (`deploy`) and `federation`, a SuperLink and SuperNodes on loopback.  `supervisor`
is the process that all others are forked from and end with, and `roles` is what they do.  `bundle`
is the app that every node gets, `certificates` its keys, and `gate` what a SuperLink refuses.
"""
