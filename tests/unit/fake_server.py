"""A server as troublesome as vLLM, without its weight: `fake_server.py PORT MODE TOKEN`, run as a script.

It has a forked child, a double-forked one in a session of its own and without our environment, and shared memory.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

PORT, MODE, TOKEN = int(sys.argv[1]), sys.argv[2], sys.argv[3]
BEGAN = time.monotonic()


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        broken = MODE == "deaf" or (MODE == "breaks" and time.monotonic() > BEGAN + 0.5)
        self.send_response(404 if MODE == "other" and self.path == "/health" else 503 if broken else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def sleep_in_a_child() -> None:
    if os.fork() == 0:
        time.sleep(600)


def sleep_far_away() -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            program = "import time; time.sleep(600)"
            os.execve(sys.executable, [sys.executable, "-S", "-c", program, TOKEN], {})
        os._exit(0)
    os.wait()


def main() -> None:
    print("loading the model", flush=True)
    if MODE == "dies":
        raise ValueError("the model has no layers")
    if MODE == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sleep_far_away()
    sleep_in_a_child()
    model = Path(f"/dev/shm/model-{TOKEN}")
    if model.exists():
        with model.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    segment = SharedMemory(f"segment-{TOKEN}", create=True, size=4096)
    lock = multiprocessing.get_context("spawn").Lock()
    print(f"semaphore {getattr(lock, '_semlock').name}", flush=True)  # noqa: B009  # not in typeshed
    server = HTTPServer(("127.0.0.1", PORT), Answers)
    server.serve_forever()
    del mapped, segment


if __name__ == "__main__":
    main()
