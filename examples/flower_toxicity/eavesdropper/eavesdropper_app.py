"""An eavesdropping client app: it trains like any other and records what it is sent.

It is on one node's machine only; the owner of that machine decides what runs there.
"""

from __future__ import annotations

import os
from pathlib import Path

from toxicity.client_app import app as ordinary

from covertfl.flower import make_eavesdropper_app

app = make_eavesdropper_app(ordinary, Path(os.environ["COVERTFL_RECORDS"]))
