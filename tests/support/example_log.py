"""The participation log that ships with covertfl: 600 rounds of 20 simulated clients."""

from __future__ import annotations

from pathlib import Path

import covertfl

EXAMPLE_LOG = Path(covertfl.__file__).parent / "data" / "participation.csv"
