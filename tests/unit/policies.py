"""Builds small policies for tests: a speculating pool, a plain one, three classes."""

from __future__ import annotations

from typing import Any

from selector.policy import Policy, Pool, parse_policy

TARGET = "org/target 135M"
HEAD = "my-head"


def _model(name: str, path: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": name, "path": path, "config_sha256": "0" * 64, "parameters": 1000, "weight_bytes": 2000,
        "kv_bytes_per_token": 10, "vocab_size": 49152, "max_model_len": 8192,
        "architecture": "LlamaForCausalLM",
    } | changes  # fmt: skip


def pool(name: str = "spec", strategy: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "strategy": strategy or {"method": "eagle3", "drafter": HEAD, "num_speculative_tokens": 4},
        "schedule": None, "expected_batch": 2.0, "max_batch": 8, "max_context_tokens": 2048,
        "memory_bytes": 10**9,
        "traffic_share": 0.5, "server_share": 0.5, "base_url": f"http://{name}.example:8000/v1",
    } | changes  # fmt: skip


NGRAM = {"method": "ngram", "num_speculative_tokens": 6, "lookup_min": 2, "lookup_max": 4}
PLAIN = {"method": "none"}


def request_class(task: str, in_pool: str, temperature: float = 0.0, top_p: float = 1.0, k: int = 3) -> dict[str, Any]:
    name = task if temperature == 0 else f"{task}, t={temperature:g}" + (f", top_p={top_p:g}" if top_p < 1 else "")
    estimate = {"value": 1.3, "low": 1.2, "high": 1.4, "basis": "measured"}
    return {
        "request_class": name, "task": task, "temperature": temperature, "top_p": top_p,
        "traffic_share": 0.25,
        "pool": in_pool, "num_speculative_tokens": k, "speedup": estimate, "tau": 2.0, "break_even_tau": 1.4,
        "own_best": PLAIN, "own_best_speedup": estimate, "tie_set": [], "looping_share": 0.0,
        "speedup_without_loops": None, "reason": f"measured for {name}",
    }  # fmt: skip


def data(**changes: Any) -> dict[str, Any]:
    """A policy as plain data; keywords replace top-level keys."""
    return {
        "schema_version": 1,
        "target": _model(TARGET, "/models/target"),
        "engine": {"name": "fake", "version": "1", "dtype": "float32", "device": "cpu", "threads": 2},
        "drafters": {HEAD: drafter()},
        "objective": "latency", "load": 2,
        "pools": [pool("lookup", NGRAM, server_share=0.2), pool(), pool("plain", PLAIN, server_share=0.1)],
        "classes": [
            request_class("chat", "spec"),
            request_class("chat", "plain", 0.5, k=0),
            request_class("chat", "plain", 0.8, k=0),
            request_class("code", "spec", k=4),
            request_class("edit", "lookup", k=6),
        ],
        "fallback_pool": "plain",
        "speedup": {"value": 1.3, "low": 1.2, "high": 1.4, "basis": "measured"},
        "regret": {"p95": 0.01, "cells_considered": 9, "cells_measured": 3, "composition_error": None},
        "aa_noise": 0.01, "profile_fingerprint": "f" * 16, "selector_version": "0.1.0", "command": "test",
        "created": "2026-11-30T00:00:00Z",
    } | changes  # fmt: skip


def drafter(method: str = "eagle3", **changes: Any) -> dict[str, Any]:
    """A drafter as plain data."""
    return _model(HEAD, "/models/my eagle3 head", method=method, architecture="LlamaForCausalLMEagle3") | changes


def policy(**changes: Any) -> Policy:
    """A checked policy."""
    return parse_policy(data(**changes))


def one_pool(given: dict[str, Any], **changes: Any) -> tuple[Policy, Pool]:
    """A policy with one pool that serves everything, and that pool."""
    built = policy(
        pools=[given],
        fallback_pool=given["name"],
        classes=[request_class("chat", given["name"], k=1)],
        **changes,
    )
    return built, built.pools[0]
