"""Decoys: how the trajectory moves that is sent instead of the true one."""
