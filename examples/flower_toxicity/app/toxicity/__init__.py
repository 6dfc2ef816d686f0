"""The part of the project that goes to the nodes."""
