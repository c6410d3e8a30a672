"""The console command as `python -m sternpost_core`, for programs that start it by interpreter."""

import sys

from sternpost_core.command import main

sys.exit(main())
