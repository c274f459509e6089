"""Real vLLM starts, says why it does not, and leaves nothing behind: SELECTOR_VLLM=path pytest -m vllm tests/vllm.

SELECTOR_VLLM is what --vllm takes: a vllm executable, a Python with vLLM, or its environment; SELECTOR_VLLM_PORT a free
port.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from selector.engines.served import reaper
from selector.engines.served.command import Launcher, find_launcher
from selector.engines.served.port import Port
from selector.engines.served.process import ServerProcess
from selector.errors import ServerFailed

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(
        "SELECTOR_VLLM" not in os.environ, reason="SELECTOR_VLLM does not name a vLLM (as --vllm would)"
    ),
    pytest.mark.skipif(not reaper.HAS_PROC, reason="looks for leftovers in /proc"),
]

PORT = os.environ.get("SELECTOR_VLLM_PORT", "8790")
URL = f"http://127.0.0.1:{PORT}"
SMALL = "--enforce-eager --max-model-len 1024 --max-num-seqs 4 --dtype float32"
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "2", "HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="session")
def launcher() -> Launcher:
    return find_launcher(os.environ["SELECTOR_VLLM"])


@pytest.fixture(scope="session")
def model() -> Path:
    from selector.embedded import embedded_target

    return embedded_target()


def server_of(launcher: Launcher, model: Path, folder: Path) -> ServerProcess:
    argv = launcher.argv([str(model), "--host", "127.0.0.1", "--port", PORT, *SMALL.split()])
    return ServerProcess(argv, ENVIRONMENT, base_url=URL, log=folder / "engine.log", label="vLLM")


def tree_of(pid: int) -> reaper.Tree:
    root = reaper.process(pid)
    assert root is not None
    return reaper.Tree(pid, root.started, "unknown", frozenset())


def used_by(tree: reaper.Tree) -> set[int]:
    tree.note()
    return tree.seen & set(reaper.segments())


def left_of(tree: reaper.Tree, used: set[int]) -> list[object]:
    port = [] if Port(URL).is_free() else [PORT]
    return [*tree.members(), *(used & set(reaper.segments())), *port]


def test_a_served_model_is_healthy_and_leaves_nothing(launcher: Launcher, model: Path, tmp_path: Path) -> None:
    said: list[str] = []
    server = server_of(launcher, model, tmp_path)
    server.start(said.append)
    try:
        server.check()
        assert said
        tree = tree_of(server.pid or 0)
        used = used_by(tree)
        assert len(tree.members()) >= 2
    finally:
        server.stop()
    assert left_of(tree, used) == []
    assert launcher.version()[0].isdecimal()


def test_nothing_is_left_when_we_are_killed_while_it_loads(launcher: Launcher, model: Path, tmp_path: Path) -> None:
    hear, tell = os.pipe()
    owner = os.fork()
    if owner == 0:
        try:
            server = server_of(launcher, model, tmp_path)

            def tell_pid(_: str) -> None:
                os.write(tell, f"{server.pid}\n".encode())

            server.start(tell_pid)
        finally:
            os._exit(1)
    os.close(tell)
    try:
        with open(hear, encoding="utf-8") as told:
            tree = tree_of(int(told.readline()))
            while not (used := used_by(tree)) or len(tree.members()) < 3:  # until its engine core has shared memory
                assert told.readline(), (tmp_path / "engine.log").read_text("utf-8")
    finally:
        os.kill(owner, signal.SIGKILL)
        os.waitpid(owner, 0)
    until = time.monotonic() + 20
    while left_of(tree, used) and time.monotonic() < until:
        time.sleep(0.1)
    assert left_of(tree, used) == []


def test_a_model_folder_that_does_not_exist_is_said_in_the_engines_words(launcher: Launcher, tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match=r"ended \(exit code 1\): .*'/no/such/model'"):
        server_of(launcher, Path("/no/such/model"), tmp_path).start()
