"""vLLM as a measured engine: a server of its own for every strategy, one at a time."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selector.adapters import adapter
from selector.adapters.checkpoint import Checkpoint
from selector.engines.served.base import OpenServer, Schedule
from selector.engines.served.client import Client
from selector.engines.served.command import Launcher
from selector.engines.served.models import drafter_info, local_folder, model_info
from selector.engines.served.options import ServeOptions, arguments
from selector.engines.served.process import ServerProcess
from selector.engines.served.requirements import Surroundings, unmet
from selector.errors import ServerFailed
from selector.profile import DrafterInfo, EngineInfo, ModelInfo
from selector.recipes import load_recipes
from selector.strategy import MODEL_METHODS, Method, Strategy

#: Environment variables that change what vLLM does; those set here or by the user are recorded.
_TELLING = re.compile(
    r"VLLM_(?!.*KEY)\w+|OMP_\w+|KMP_\w+|CUDA_VISIBLE_DEVICES|LD_PRELOAD|HF_HUB_OFFLINE|MKL_NUM_THREADS"
)
#: What vLLM 0.32 says about itself at start.
_RUNNER = re.compile(r"[Uu]sing the (V[12]) model runner")
_DTYPE, _DEVICE = re.compile(r"dtype=torch\.(\w+)"), re.compile(r"device_config=(\w+)")
_CORES = re.compile(r"local_rank=0, core ids=\[([\d, ]+)\]")
_VERSION = re.compile(r"LLM engine \(v([^)]+)\)")
#: The version of what a --launch command starts, until its log tells.
LAUNCHED = "as launched"


class VllmServers:
    """Starts `vllm serve` for a target. `drafters`: method and checkpoint folder by name."""

    def __init__(
        self,
        launcher: Launcher,
        model: str,
        name: str | None,
        drafters: Mapping[str, tuple[Method, Path]],
        options: ServeOptions,
        *,
        logs: Path,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.launcher, self.model, self.options = launcher, model, options
        self._logs, self._say = logs, say or (lambda text: None)
        info = model_info(model, options.dtype, options.max_model_len)
        self._target = info.model_copy(update={"name": name}) if name else info
        self._drafters = {n: self._describe(n, method, path) for n, (method, path) in drafters.items()}
        self._version: str | None = None

    def _describe(self, name: str, method: Method, path: Path) -> DrafterInfo:
        folder = local_folder(self.model)
        warnings: tuple[str, ...] = ()
        if folder is not None:
            warnings = tuple(adapter(method).check(Checkpoint(path), Checkpoint(folder)))
        return drafter_info(name, method, path, self._target, self.options.dtype, warnings)

    @property
    def target(self) -> ModelInfo:
        """The model being served."""
        return self._target

    @property
    def drafters(self) -> Mapping[str, DrafterInfo]:
        """The drafters that passed their checks."""
        return self._drafters

    @property
    def running(self) -> None:
        """Any strategy can be started."""
        return None

    @property
    def version(self) -> str:
        """vLLM's version, asked of its command once."""
        if self._version is None:
            try:
                self._version = self.launcher.version()
            except ServerFailed:  # a --launch command: told by the server that it starts
                self._version = LAUNCHED
        return self._version

    @property
    def settings(self) -> Mapping[str, object]:
        """Version, options and environment that a journal must agree on."""
        o = self.options
        return {
            "engine": "vllm", "version": self.version, "dtype": o.dtype, "quantization": o.quantization,
            "tensor_parallel": o.tensor_parallel, "draft_tensor_parallel": o.draft_tensor_parallel,
            "max_num_seqs": o.max_num_seqs, "max_model_len": o.max_model_len, "engine_args": dict(o.engine_args),
            "environment": self._environment(),
        }  # fmt: skip

    def _environment(self) -> dict[str, str]:
        return {k: v for k, v in sorted((os.environ | dict(self.options.environment)).items()) if _TELLING.fullmatch(k)}

    def unmet(self, method: Method, *, asked: bool) -> str | None:
        """By the recipe's requirements: runner, package, platform, what the target's checkpoint holds."""
        folder = local_folder(self.model)
        config = Checkpoint(folder).config if folder is not None else None
        around = Surroundings(self.launcher.python, os.environ | dict(self.options.environment), config)
        return unmet(load_recipes()[method], around, asked=asked)

    def valid_k(self, strategy: Strategy) -> tuple[int, ...]:
        """By what drafter and target say of themselves; all of them where the target's files are not here."""
        folder = local_folder(self.model)
        if folder is None:
            return tuple(range(1, strategy.k + 1))
        drafter = Checkpoint(Path(self._drafters[strategy.drafter].path)) if strategy.drafter else None
        return adapter(strategy.method).widths(drafter, Checkpoint(folder)).upto(strategy.k)

    def speculative(self, strategy: Strategy, schedule: Schedule | None) -> dict[str, Any] | None:
        """The speculative config of a launch; None for plain decoding."""
        path = self._drafters[strategy.drafter].path if strategy.drafter else None
        fields = adapter(strategy.method).vllm(strategy, path)
        if fields is None:
            return None
        if strategy.draft_sample_method != "greedy":
            fields["draft_sample_method"] = strategy.draft_sample_method
        if strategy.method in MODEL_METHODS and self.options.draft_tensor_parallel is not None:
            fields["draft_tensor_parallel_size"] = self.options.draft_tensor_parallel
        if schedule is not None:
            fields["num_speculative_tokens_per_batch_size"] = [list(entry) for entry in schedule]
        return fields

    @contextmanager
    def open(self, strategy: Strategy, *, schedule: Schedule | None, max_batch: int) -> Iterator[OpenServer]:
        """Start a server, wait until it answers, and take its whole process tree down afterwards."""
        port = self.options.port or _free_port()
        seats = max(max_batch, self.options.max_num_seqs or 0)
        argv = self.launcher.argv(
            arguments(self.model, self.options, self.speculative(strategy, schedule), port=port, max_num_seqs=seats)
        )
        url = f"http://127.0.0.1:{port}"
        log = self._logs / f"{re.sub(r'[^A-Za-z0-9.]+', '-', strategy.family)}.log"
        log.unlink(missing_ok=True)
        process = ServerProcess(
            argv, dict(self.options.environment), base_url=url, log=log, ready_seconds=self.options.ready_seconds,
            label=f"vLLM ({strategy.method})",
        )  # fmt: skip
        start = time.monotonic()
        try:
            process.start(self._say)
            started = time.monotonic() - start
            # a server takes its key from there, too: the user's environment may hold one
            key = (os.environ | dict(self.options.environment)).get("VLLM_API_KEY")
            client = Client(url, key=key, stall_seconds=self.options.stall_seconds)
            client.prepare()
            if not self._target.max_model_len:  # its files are not here: a container has them
                self._target = self._target.model_copy(update={"max_model_len": client.max_model_len() or 0})
            yield OpenServer(client, started, self._info(process.log_tail(5000)), process.check)
        finally:
            process.stop()

    def _info(self, log: str) -> EngineInfo:
        """What this build and this start are; what the log says counts, where it says it."""
        dtype, device = (pattern.search(log) for pattern in (_DTYPE, _DEVICE))
        version = _VERSION.search(log)
        return EngineInfo(
            name="vllm",
            version=version[1] if version and self.version == LAUNCHED else self.version,
            runner=_runner(log, device[1] if device else "", self._environment()),
            dtype=dtype[1] if dtype else self.options.dtype,
            device=device[1] if device else "unknown",
            threads=_threads(log),
            environment=self._environment(),
            packages={"options": " ".join(_told(self.options))},
        )


def _told(options: ServeOptions) -> list[str]:
    """The options of every launch, without model and port."""
    return arguments("", options, None, port=0, max_num_seqs=0)[7:]


def _runner(log: str, device: str, environment: Mapping[str, str]) -> str | None:
    """V1 or V2: vLLM 0.32 says when it falls back to V1, and nothing when it takes V2 on a GPU."""
    if found := _RUNNER.search(log):
        return found[1]
    wanted = environment.get("VLLM_USE_V2_MODEL_RUNNER")
    return {"0": "V1", "1": "V2"}.get(wanted or "", "V2" if device == "cuda" else None)


def _threads(log: str) -> int:
    """Cores that the CPU backend bound its threads to, by its log; 0: not said (a GPU)."""
    bound = _CORES.findall(log)
    return len(bound[0].split(",")) if bound else 0


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
