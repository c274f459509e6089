"""How property tests run everywhere: the same examples each time, and no time limits on a shared machine."""

import os
import signal

from hypothesis import HealthCheck, settings

if "PYTEST_XDIST_WORKER" in os.environ:  # before torch is imported: two workers of two threads fight over the cores
    os.environ.setdefault("OMP_NUM_THREADS", "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job: tests of Ctrl-C need it heard
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "steady", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")
