"""The part of the project that is sent to the nodes."""
