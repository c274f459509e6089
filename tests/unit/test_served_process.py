"""A served engine starts, tells why it does not, and leaves nothing behind however we end."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from selector.engines.served import port, reaper
from selector.engines.served.log import engine_error
from selector.engines.served.port import Port
from selector.engines.served.process import ServerProcess
from selector.errors import ServerFailed

pytestmark = [
    pytest.mark.vllm,  # scripted servers, twenty kills: slow
    pytest.mark.skipif(not reaper.HAS_PROC, reason="looks for leftovers in /proc"),
]

HERE = Path(__file__).parent


class Scene:
    """One fake server's port, log and token, which its processes and shared memory are found by."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.token = f"t{os.getpid()}x{self.port}x{random.randrange(10**9)}"
        self.log = folder / "engine.log"
        self.url = f"http://127.0.0.1:{self.port}"

    def command(self, mode: str) -> list[str]:
        return [sys.executable, "-S", str(HERE / "fake_server.py"), str(self.port), mode, self.token]

    def server(self, mode: str = "works", *, ready: float = 20, grace: float = 5) -> ServerProcess:
        tagged = {"SERVED_TEST": self.token}
        return ServerProcess(
            self.command(mode), tagged, base_url=self.url, log=self.log, ready_seconds=ready, grace_seconds=grace
        )

    def pids(self) -> list[int]:
        """Processes with the token in their arguments or environment."""
        found = []
        for pid in reaper.processes():
            with contextlib.suppress(OSError):
                said = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
                found += [pid] if self.token.encode() in said else []
        return found

    def shared(self) -> set[str]:
        named = re.findall(r"semaphore /(\S+)", self.log.read_text("utf-8")) if self.log.exists() else []
        names = set(reaper.segments().values())
        return {n for n in names if self.token in n} | {n for n in names if n in {f"sem.{x}" for x in named}}

    def left(self) -> list[object]:
        taken = [] if Port(self.url).is_free() else [self.port]
        return [*self.pids(), *self.shared(), *taken]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    for pid in scene.pids():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for name in scene.shared():
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"/dev/shm/{name}")


def gone_within(scene: Scene, seconds: float) -> list[object]:
    until = time.monotonic() + seconds
    while (left := scene.left()) and time.monotonic() < until:
        time.sleep(0.1)
    return left


def test_a_stopped_server_leaves_no_process_port_or_shared_memory(scene: Scene) -> None:
    said: list[str] = []
    server = scene.server()
    server.start(said.append)
    # server, its child, the one far away, its resource tracker; a segment and a semaphore
    assert len(scene.pids()) == 4
    assert len(scene.shared()) == 2
    server.check()
    pid = server.pid
    assert pid in scene.pids()
    server.stop()
    assert scene.left() == []
    server.stop()
    assert server.pid is None
    assert "semaphore" in server.log_tail()


def test_a_server_can_be_started_again_and_its_log_is_kept(scene: Scene) -> None:
    server = scene.server()
    for _ in range(2):
        with server:
            assert server.log_tail().count("loading") == 1
    assert scene.log.read_text("utf-8").count("loading") == 2


def test_a_server_that_ignores_sigterm_is_killed(scene: Scene) -> None:
    with scene.server("stubborn", grace=0.3):
        pass
    assert scene.left() == []


def test_another_engine_without_health_is_asked_for_its_models(scene: Scene) -> None:
    with scene.server("other") as server:
        server.check()


def test_what_was_in_shared_memory_before_stays(scene: Scene) -> None:
    model = Path(f"/dev/shm/model-{scene.token}")
    model.write_bytes(b"weights")
    with scene.server("stubborn", grace=0):
        pass
    assert model.exists()
    assert not Path(f"/dev/shm/segment-{scene.token}").exists()
    model.unlink()


def test_a_segment_another_process_holds_stays(scene: Scene) -> None:
    server = scene.server("stubborn", grace=0)  # its resource tracker has no time to interfere
    server.start()
    with open(f"/dev/shm/segment-{scene.token}", "rb"):
        server.stop()
        assert scene.shared() == {f"segment-{scene.token}"}


def test_a_taken_port_is_refused_before_anything_starts(scene: Scene) -> None:
    with socket.create_server(("127.0.0.1", scene.port)), pytest.raises(ServerFailed, match="give another --port"):
        scene.server().start()
    assert not scene.log.exists()


def test_two_selectors_do_not_start_on_one_port(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one's server has not bound it yet."""
    monkeypatch.setattr(port, "CLAIM_SECONDS", 0)
    first = Port(scene.url)
    first.claim()
    with pytest.raises(ServerFailed, match=f"port {scene.port} is taken by another process: give another --port"):
        scene.server().start()
    first.release()


def test_a_server_that_dies_tells_why_at_once(scene: Scene) -> None:
    began = time.monotonic()
    with pytest.raises(ServerFailed, match=r"ended \(exit code 1\): ValueError: the model has no layers \(log: "):
        scene.server("dies", ready=60).start()
    assert time.monotonic() - began < 5
    assert scene.left() == []


def test_a_server_that_never_gets_healthy_names_the_option_and_its_last_line(scene: Scene) -> None:
    said: list[str] = []
    with pytest.raises(
        ServerFailed, match=r"not ready after 2 s \(--ready-timeout .* 503, its last line was 'semaphore"
    ):
        scene.server("deaf", ready=2).start(said.append)
    assert "is starting, " in said[0]
    assert scene.left() == []


def test_a_command_that_does_not_exist_is_said(scene: Scene) -> None:
    server = ServerProcess(["/no/such/vllm"], {}, base_url=scene.url, log=scene.log)
    with pytest.raises(ServerFailed, match=r"its command cannot be run: .*/no/such/vllm"):
        server.start()


def test_check_notices_a_dead_server_and_one_whose_engine_is_dead(scene: Scene) -> None:
    with scene.server("breaks") as server:
        time.sleep(0.5)
        with pytest.raises(ServerFailed, match="runs, but GET /health gave status 503 three times"):
            server.check()
        os.kill(server.pid or 0, signal.SIGKILL)
        while reaper.process(server.pid or 0):
            time.sleep(0.01)
        with pytest.raises(ServerFailed, match="killed by signal 9"):
            server.check()
    assert scene.left() == []


def test_ctrl_c_while_waiting_takes_the_server_down(scene: Scene) -> None:
    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scene.server("deaf").start(interrupt)
    assert scene.left() == []


def test_killing_the_guard_is_noticed_and_stop_still_leaves_nothing(scene: Scene) -> None:
    server = scene.server()
    server.start()
    guard = reaper.process(server.pid or 0)
    assert guard is not None
    os.kill(guard.parent, signal.SIGKILL)
    while (dying := reaper.process(guard.parent)) and dying.state != "Z":  # ours to bury, which `stop` does
        time.sleep(0.01)
    with pytest.raises(ServerFailed, match="the process that guards it was killed"):
        server.check()
    server.stop()
    far_away = [pid for pid in scene.pids() if (p := reaper.process(pid)) and p.session == p.group != os.getsid(0)]
    assert len(far_away) == 1  # left its session and dropped its environment: only the killed guard knew it
    os.kill(far_away[0], signal.SIGKILL)
    assert gone_within(scene, 5) == []


def own(scene: Scene, tell: int, forks: bool) -> None:
    """What the process that will be killed does: starts and stops a server and tells how far it is."""
    os.environ["SERVED_TEST"] = scene.token  # so that the guard is found by it, too
    server = scene.server(grace=1)
    os.write(tell, b"starting\n")
    server.start()
    if forks and os.fork() == 0:
        time.sleep(10)  # holds our end of the guard's pipe open
        os._exit(0)
    os.write(tell, b"healthy\n")
    time.sleep(0.1)
    os.write(tell, b"stopping\n")
    server.stop()
    time.sleep(60)


DRAWN = random.Random(7)
MOMENTS = [
    (after, round(DRAWN.uniform(0, most), 3))
    for after, most, times in (("starting", 0.5, 9), ("healthy", 0.1, 4), ("stopping", 0.15, 7))
    for _ in range(times)
]


@pytest.mark.parametrize(("after", "seconds"), MOMENTS)
def test_nothing_is_left_when_we_are_killed(scene: Scene, after: str, seconds: float) -> None:
    kill_an_owner(scene, after, seconds)
    assert gone_within(scene, 5) == []


def test_a_fork_of_ours_does_not_keep_the_server_alive(scene: Scene) -> None:
    kill_an_owner(scene, "healthy", 0, forks=True)
    assert gone_within(scene, 5) == []


def test_who_was_killed_can_start_again_at_once(scene: Scene) -> None:
    """The last server is still being taken down; that is waited for."""
    kill_an_owner(scene, "healthy", 0)
    with scene.server() as server:
        server.check()
    assert scene.left() == []


def kill_an_owner(scene: Scene, after: str, seconds: float, *, forks: bool = False) -> None:
    hear, tell = os.pipe()
    owner = os.fork()  # a new interpreter would spend a second on imports
    if owner == 0:
        try:
            own(scene, tell, forks)
        finally:
            os._exit(1)
    os.close(tell)
    try:
        with open(hear, encoding="utf-8") as told:
            while (line := told.readline().strip()) != after:
                assert line, scene.log.read_text("utf-8")
            time.sleep(seconds)
    finally:
        os.kill(owner, signal.SIGKILL)
        os.waitpid(owner, 0)


#: What each recorded start (vLLM 0.32 on CPU) failed of.
RECORDED = {
    "bad-speculation": "pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig "
    "Value error, num_speculative_tokens was provided but without speculative model.",
    "no-such-model": "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or "
    "'namespace/repo_name': '/no/such/model'. Use `repo_type` argument if needed.",
    "port-in-use": "OSError: [Errno 98] Address already in use",
    "too-little-memory": "ValueError: Available memory on node 0 (11.58/21.09 GiB) on kv cache allocation is less than "
    "requested memory for kv (4000.0 GiB). Decrease --kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE, or reduce CPU "
    "memory used by other processes.",
    "unknown-argument": "api_server.py: error: unrecognized arguments: --no-such-option",
}


def test_every_recorded_log_has_its_reason() -> None:
    logs = {f.stem.removeprefix("vllm-"): f for f in (HERE / "data").glob("vllm-*.log")}
    assert {name: engine_error(f.read_text("utf-8")) for name, f in logs.items()} == RECORDED


CORE = "(EngineCore pid=7) ERROR 12-01 04:05:06 [core.py:12] "
GENERIC = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (f"{CORE}ValueError: No available memory for the cache blocks.\n{GENERIC}",
         "ValueError: No available memory for the cache blocks."),
        (f"{CORE}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.\n{GENERIC}",
         "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB."),
        (f"{CORE}Traceback (most recent call last):\n{GENERIC}\n", GENERIC),
        (f"{CORE}AssertionError\n{GENERIC}\n", "AssertionError"),
        ("INFO: started\nERROR 12-01 04:05:06 [x.py:1] request 7 was slow", ""),
        (f"RuntimeError: {'x' * 600}", f"RuntimeError: {'x' * 485}…"),
        ("", ""),
    ],
)  # fmt: skip
def test_the_most_telling_error_is_found(text: str, error: str) -> None:
    assert engine_error(text) == error
