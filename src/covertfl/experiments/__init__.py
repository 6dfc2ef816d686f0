"""The paper's tables and figures, one file each; `registry` has them by name."""
