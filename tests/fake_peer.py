"""A peer without a model, for tests of the harness: an HTTP server that takes an image's class from its length.

Its layout says how it misbehaves: `off` is added to every class, `pause_ms` passes before every answer, `exit_code`
ends it at once, and `child` has it start a process of its own that does not end by itself.
"""

import json
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from bench.peers.setup import Setup

CLASSES = 1000


def class_of(file: bytes) -> int:
    """What it answers when it behaves."""
    return len(file) % CLASSES


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    setup_: Setup

    def do_POST(self) -> None:
        layout = self.setup_.layout
        file = self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(layout.get("pause_ms", 0) / 1e3)
        body = json.dumps({"indices": [class_of(file) + layout.get("off", 0)], "scores": [1.0]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


def main() -> None:
    """Serve until SIGTERM."""
    setup = _Handler.setup_ = Setup.from_environment()
    if code := setup.layout.get("exit_code"):
        print("no such model", file=sys.stderr)
        sys.exit(code)
    if setup.layout.get("child"):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    ThreadingHTTPServer(("127.0.0.1", setup.port), _Handler).serve_forever()


if __name__ == "__main__":
    main()
