"""`python -m bayesattn_fast` is the `bayesattn` command."""

import sys

from .cli import main

sys.exit(main())
