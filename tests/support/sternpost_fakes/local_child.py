"""
A child process for tests of `sternpost up`: it answers, is slow, dies or is stubborn, as its flags say.

Run as `python local_child.py --port N ...`. Every path answers 200 once it is ready, 503 before.
"""

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

LIFETIME_SECONDS_MAX = 120
"""No process of a failed test stays for longer."""


def main() -> int:
    """Do what the flags say; return the exit status."""
    flags = _parse()
    _note(flags.pids, os.getpid())
    print(f"child on port {flags.port}", flush=True)
    if flags.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if flags.grandchild:
        # It ignores SIGTERM, as a worker that waits for its engine does.
        code = f"import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep({LIFETIME_SECONDS_MAX})"
        _note(flags.pids, subprocess.Popen([sys.executable, "-S", "-c", code]).pid)
    if flags.port:
        _serve(flags.port, time.monotonic() + flags.ready_after)
    time.sleep(LIFETIME_SECONDS_MAX if flags.die_after is None else flags.die_after)
    print("the reason of its death", flush=True)
    return int(flags.status)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument(
        "--pids", type=Path, required=True, help="file that gets the numbers of all processes"
    )
    parser.add_argument("--ready-after", type=float, default=0.0)
    parser.add_argument("--die-after", type=float)
    parser.add_argument("--status", type=int, default=1)
    parser.add_argument("--ignore-sigterm", action="store_true")
    parser.add_argument("--grandchild", action="store_true")
    return parser.parse_args()


def _note(path: Path, pid: int) -> None:
    with path.open("a") as file:
        file.write(f"{pid}\n")


def _serve(port: int, ready_at: float) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if time.monotonic() >= ready_at else 503)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
