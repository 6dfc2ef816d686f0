"""Engines: who answers the queries."""
