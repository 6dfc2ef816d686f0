"""Covert federated learning: when to send the true model, when a decoy, and what leaks."""

__version__ = "0.1.0"
