"""Takes a server's whole process tree down; run as a script it also starts the server and outlives our own end.

As a script (`python -I reaper.py`) it reads one JSON line, the job, from stdin, starts the server in a session of its
own and waits. Only we hold the other end of stdin, so its end, however we ended, means: take everything down. Being the
tree's subreaper, it inherits every process that forks away, hence none escapes it. Standard library only: under -I
nothing else is there.

Without /proc (macOS) only the server's process group is ended, and shared memory is left alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

MARKER = "SELECTOR_SERVER_ID"  #: variable in the server's environment that its processes are known by
SHM = "/dev/shm"
HAS_PROC = Path("/proc/self/stat").exists()
KILL_SECONDS = 10.0  #: how long the kernel may take to end what got SIGKILL (a process in disk sleep takes its time)
SET_CHILD_SUBREAPER = 36  # linux/prctl.h


class Process(NamedTuple):
    """What /proc/PID/stat says; `started` (clock ticks after boot) tells a reused pid from the old one."""

    state: str
    parent: int
    group: int
    session: int
    started: int


def process(pid: int) -> Process | None:
    """The process, or None if there is none (any more)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("latin-1").rpartition(")")[2].split()
    except OSError:
        return None
    return Process(fields[0], int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def processes() -> dict[int, Process]:
    """All living processes."""
    found = {pid: process(pid) for pid in map(int, filter(str.isdecimal, os.listdir("/proc")))}
    return {pid: p for pid, p in found.items() if p is not None and p.state not in "ZX"}


def in_use(pid: int) -> set[int]:
    """Inodes of the files in /dev/shm that a process maps or holds open.

    Not their names: glibc creates a semaphore under another one and renames it, and /proc keeps showing the first.
    """
    found: set[int] = set()
    with contextlib.suppress(OSError):
        maps = Path(f"/proc/{pid}/maps").read_text("utf-8", "surrogateescape")
        found.update(map(int, re.findall(rf" (\d+) +{SHM}/", maps)))
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                if os.readlink(path := f"/proc/{pid}/fd/{fd}").startswith(f"{SHM}/"):
                    found.add(os.stat(path).st_ino)
    return found


def segments() -> dict[int, str]:
    """The shared memory and semaphores there are: inode and name; folders in /dev/shm are no such thing."""
    if not HAS_PROC or not os.path.isdir(SHM):
        return {}
    with os.scandir(SHM) as entries:
        return {entry.inode(): entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)}


def send(number: int, pids: Iterable[int]) -> None:
    """A signal to each process that is still there and ours."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


@dataclass
class Tree:
    """A server's processes and the shared memory they used.

    vLLM's processes rename themselves and thereby wipe their /proc/PID/environ, so the marker alone finds only some of
    them: a process belongs to the tree if it carries the marker, is in the server's session or group, or descends from
    one that does.
    """

    root: int  #: the server's pid, which is its session and group, too; 0 if it was never learned
    started: int  #: the root's start, as in `Process`
    marker: str  #: value of `MARKER`
    existed: frozenset[int]  #: inodes in /dev/shm before the start: never removed, whoever maps them
    ancestor: int = 0  #: the subreaper, whose children all are of the tree
    seen: set[int] = field(default_factory=set)

    def members(self) -> dict[int, Process]:
        """The tree's living processes."""
        everyone = processes()
        spared = {os.getpid(), self.ancestor}
        leader = everyone.get(self.root)
        own_session = leader is None or leader.started == self.started  # else the pid belongs to someone else by now
        tag = f"{MARKER}={self.marker}".encode()

        def belongs(pid: int, p: Process) -> bool:
            if self.root and own_session and self.root in (p.session, p.group):  # 0 is the kernel's own session
                return True
            if self.ancestor and p.parent == self.ancestor:
                return True
            with contextlib.suppress(OSError):
                return tag in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            return False

        found = {pid for pid, p in everyone.items() if pid not in spared and belongs(pid, p)}
        while more := {pid for pid, p in everyone.items() if p.parent in found} - found - spared:
            found |= more
        return {pid: everyone[pid] for pid in found}

    def note(self) -> dict[int, Process]:
        """Remembers which shared memory the tree uses now; gives its processes back."""
        members = self.members()
        self.seen.update(*map(in_use, members))
        return members

    def frozen(self) -> dict[int, Process]:
        """Stops the tree and notes its shared memory: what is stopped cannot create more of it before it is killed."""
        members = self.members()
        send(signal.SIGSTOP, members)
        until = time.monotonic() + 0.2
        while time.monotonic() < until and any((p := process(pid)) and p.state not in "TtZX" for pid in members):
            time.sleep(0.002)
        self.seen.update(*map(in_use, members))
        return members

    def take_down(self, grace: float, reap: Callable[[], object] = lambda: None) -> list[int]:
        """SIGTERM to the group, `grace` seconds, SIGKILL to all; the shared memory; gives back what would not die."""
        if not HAS_PROC:
            return self._end_group(grace, reap)
        members = self.frozen()
        send(signal.SIGTERM, (pid for pid, p in members.items() if p.group == self.root))
        send(signal.SIGCONT, members)
        until = time.monotonic() + grace
        while any(p.group == self.root for p in members.values()) and time.monotonic() < until:
            time.sleep(0.05)
            reap()
            members = self.note()
        until = time.monotonic() + KILL_SECONDS
        while members and time.monotonic() < until:
            send(signal.SIGKILL, self.frozen())  # again and again: one that was being forked is not in the list yet
            time.sleep(0.02)
            reap()
            members = self.members()
        self._unlink()
        return sorted(members)

    def _unlink(self) -> None:
        inodes = self.seen - self.existed
        if inodes:  # the resource trackers that would have done it were killed, too
            inodes = inodes.difference(*map(in_use, processes()))
        for inode, name in segments().items():
            if inode in inodes:
                with contextlib.suppress(OSError):
                    os.unlink(f"{SHM}/{name}")

    def _end_group(self, grace: float, reap: Callable[[], object]) -> list[int]:
        if not self.root:
            return []
        for number, seconds in ((int(signal.SIGTERM), grace), (int(signal.SIGKILL), KILL_SECONDS)):
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                try:
                    os.killpg(self.root, number)
                except (ProcessLookupError, PermissionError):  # macOS: the latter for a group of zombies
                    return []
                number = 0  # from now on only asks whether it is there
                time.sleep(0.05)
                reap()
        return [self.root]


@dataclass(frozen=True)
class Job:
    """What the owner asks of the script."""

    argv: list[str]
    environment: dict[str, str]
    marker: str
    existed: list[int]  #: see `Tree`
    owner: int  #: pid
    grace: float  #: seconds


class Watchdog:
    """The script's state: the server it started, and whom it tells."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.root: subprocess.Popen[bytes] | None = None

    def tell(self, **message: object) -> None:
        """A JSON line to our owner, who may be gone."""
        with contextlib.suppress(OSError):
            os.write(1, json.dumps(message).encode() + b"\n")

    def reap(self) -> None:
        """Buries the dead, inherited ones included; tells when the server is among them."""
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if self.root and found[0] == self.root.pid:
                    self.root.returncode = os.waitstatus_to_exitcode(found[1])
                    self.tell(exit=self.root.returncode)

    def start(self) -> Tree | None:
        """Starts the server; None if its command cannot be run."""
        environment = self.job.environment | {MARKER: self.job.marker}
        try:
            self.root = subprocess.Popen(
                self.job.argv, env=environment, stdin=subprocess.DEVNULL, stdout=2, stderr=2, start_new_session=True
            )
        except OSError as error:
            self.tell(error=str(error))
            return None
        known = process(self.root.pid) if HAS_PROC else None
        started = known.started if known else 0
        self.tell(pid=self.root.pid, started=started)
        return Tree(self.root.pid, started, self.job.marker, frozenset(self.job.existed), os.getpid())

    def watch(self, tree: Tree, wake: int) -> None:
        """Until stdin ends, our owner does, or SIGTERM comes; a byte on stdin means: note the shared memory."""
        watched = [0, wake]
        with contextlib.suppress(OSError, AttributeError):  # a fork of our owner may keep the pipe open
            watched.append(os.pidfd_open(self.job.owner))
        while True:
            ready = select.select(watched, [], [])[0]
            if wake in ready and signal.SIGTERM in os.read(wake, 512):
                return
            self.reap()
            if any(fd in ready for fd in watched[2:]):
                return
            if 0 in ready:
                if not os.read(0, 512):
                    return
                if HAS_PROC:
                    tree.note()

    def run(self, wake: int) -> None:
        """Starts, watches, takes down."""
        if tree := self.start():
            try:
                self.watch(tree, wake)
            finally:  # a fault of ours must not leave the server without anyone to end it
                self.tell(left=tree.take_down(self.job.grace, self.reap))


def main() -> None:
    """Reads the job and does it."""
    line = b""
    while not line.endswith(b"\n"):  # byte by byte: what follows the line is not ours to buffer
        if not (byte := os.read(0, 1)):
            return
        line += byte
    wake, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which the server would inherit
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    Watchdog(Job(**json.loads(line))).run(wake)


if __name__ == "__main__":
    main()
