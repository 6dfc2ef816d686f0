"""Tasks: what is trained, on whose data."""
