"""Retraining as a lasting service: who asks, what is owed, and who watches.

- `requests`: what can be asked for, checked
- `schema`, `store`: the database that keeps requests, versions, rounds and warnings
- `status`: what the service reports, as JSON
- `writer`, `reader`: threads that write and read the database
- `guard`, `events`, `api`: the HTTP interface
- `http_process`: the HTTP interface as a process of its own
- `client`, `uploads`: ask a running service
"""
