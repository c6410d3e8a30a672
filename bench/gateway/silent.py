"""`sternpost gateway` with all its flags, and without metrics: `python -m bench.gateway.silent`."""

from __future__ import annotations

import argparse
import sys

from sternpost_gateway.command import COMMAND, settings_of
from sternpost_gateway.server import serve
from sternpost_gateway.silent_metrics import SilentMetrics


def main(argv: list[str]) -> None:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser(prog="python -m bench.gateway.silent", description=__doc__)
    COMMAND.add_arguments(parser)
    serve(settings_of(parser.parse_args(argv)), SilentMetrics)


if __name__ == "__main__":
    main(sys.argv[1:])
