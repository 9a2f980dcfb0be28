"""Hypothesis draws the same cases in every run, so that a red test is about the change at hand.

`HYPOTHESIS_PROFILE=explore pytest …` draws new ones.
"""

import os

from hypothesis import settings

settings.register_profile("fixed", derandomize=True, database=None)
settings.register_profile("explore", print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))
