"""`python -m sternpost_core`: the console command for whoever starts it by interpreter, as `sternpost up` does."""

import sys

from sternpost_core.command import main

sys.exit(main())
