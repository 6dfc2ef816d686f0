"""Retraining as a lasting service: who asks, what is owed, who serves it and who watches.

Asking: `requests` says what can be asked for, `schema` and `store` keep it in a database.

Serving: `desk` takes requests in between two rounds; `changes` and `data` are what they do to a
run, `replay` takes rows out of its past, `versions` are what it releases.  `loop` plays the rounds
on the simulated engine, `flower` on Flower, and `serve` starts all of it.

Watching: `watch` records rounds, with what `promise` says of them.  `api`, `access`, `events`,
`status` and `http_process` are the HTTP interface and page.html its page; `client` is what commands
use.
"""
