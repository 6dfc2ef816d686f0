"""Eavesdroppers: estimators that are handed public records only."""
