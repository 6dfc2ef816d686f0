"""Retraining as a lasting service: who asks, what is owed, who serves it and who watches.

Asking: `requests` says what can be asked for, `schema`, `journal` and `store` keep it in a
database.

Serving: `desk` takes requests in between two rounds; `changes`, `data` and `jumps` are what they do
to a run, `replay` takes rows out of its past, `versions` are what it releases.  `loop` plays the
rounds on the simulated engine (`engine`), `flower` and `server_app` on Flower, and `serve` starts
all of it.

Watching: `watch` records rounds, with what `beliefs` and `promise` say of them.  `api`, `guard`,
`events`, `status`, `reader`, `writer` and `http_process` are the HTTP interface, `page` (page.html)
its page, and `client` and `uploads` what commands use.
"""
