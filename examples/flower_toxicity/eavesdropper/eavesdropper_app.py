"""An eavesdropping client app: trains like any other, and keeps what it was sent.

It is on one node's machine only.  Whoever owns the machine decides what runs there.
"""

from __future__ import annotations

import os
from pathlib import Path

from toxicity.client_app import app as ordinary

from covertfl.flower import make_eavesdropper_app

app = make_eavesdropper_app(ordinary, Path(os.environ["COVERTFL_RECORDS"]))
