"""Settings that every test shares."""

from __future__ import annotations

import os

from hypothesis import settings

# The matrices of the tests are small: threads would only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# The same examples in every run: a failure on another machine can be repeated here.
settings.register_profile("covertfl", deadline=None, derandomize=True, max_examples=40)
# Other examples each time: pytest --hypothesis-profile=explore
settings.register_profile(
    "explore", deadline=None, derandomize=False, print_blob=True, max_examples=400
)
settings.load_profile("covertfl")
