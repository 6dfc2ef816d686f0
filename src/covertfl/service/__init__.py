"""Retraining as a lasting service: who asks, what is owed, and who watches.

`requests` says what can be asked for, `schema` and `store` keep it.
"""
