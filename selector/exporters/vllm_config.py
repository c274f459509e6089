"""What vLLM is told for one pool, as dictionaries, under the rules it checks late or not at all itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from selector.adapters import adapter
from selector.errors import ExportError
from selector.exporters.vllm_checks import check_context, check_drafter, check_path, resolve_paths, sets_min_p
from selector.exporters.vllm_options import normalised
from selector.policy import Policy, Pool

#: Whether a method honours a smaller k from a batch-size schedule; others die at it or ignore it.
TAKES_SCHEDULE: Mapping[str, bool] = {
    "ngram": True, "draft_model": True, "eagle": True, "eagle3": True, "mtp": True, "dflash": True,
    "none": False, "ngram_gpu": False, "suffix": False, "medusa": False, "custom_class": False,
}  # fmt: skip
#: vLLM's MAX_SPEC_LEN: draft tokens per request and step.
MAX_K = 128
#: Tokens of prompt that must still fit a step beside a full batch of verifying requests.
PREFILL_CHUNK_TOKENS = 2048

_DRAFT_TP = "draft-tensor-parallel-size"


def speculation_fields(policy: Policy, pool: Pool, paths: Mapping[str, str]) -> dict[str, Any] | None:
    """The pool's strategy in vLLM's spelling, unchecked; None for plain decoding. `paths`: by drafter."""
    strategy, path = pool.strategy, None
    if strategy.drafter is not None:
        path = paths.get(strategy.drafter, policy.drafters[strategy.drafter].path)
    fields = adapter(strategy.method).vllm(strategy, path)
    if fields is None:
        return None
    if strategy.draft_sample_method != "greedy":
        fields["draft_sample_method"] = strategy.draft_sample_method
    if pool.schedule is not None:
        fields["num_speculative_tokens_per_batch_size"] = [list(entry) for entry in pool.schedule]
    return fields


def speculative_config(
    policy: Policy, pool: Pool, model_paths: Mapping[str, str] | None = None, *, allow_k0: bool = False
) -> dict[str, Any] | None:
    """What `--speculative-config` takes, or None for a plain pool.

    Raises `ExportError` for what vLLM would refuse, misread or silently not apply.
    """
    paths = resolve_paths(policy, model_paths or {})
    fields = speculation_fields(policy, pool, paths)
    if fields is None:
        return None
    if pool.strategy.k > MAX_K:
        raise ExportError(f"pool {pool.name!r}: k = {pool.strategy.k} is above {MAX_K}, vLLM's limit per step")
    check_schedule(pool, allow_k0=allow_k0)
    check_drafter(policy, pool, paths)
    check_context(policy, pool)
    return fields


def check_schedule(pool: Pool, *, allow_k0: bool = False) -> None:
    """Refuse a schedule that vLLM would refuse at start, clamp or carry on wrongly."""
    if pool.schedule is None:
        return
    where, k_max, expected = f"pool {pool.name!r}: schedule", pool.strategy.k, 1
    if not TAKES_SCHEDULE.get(pool.strategy.method, False):
        raise ExportError(f"{where}: method {pool.strategy.method!r} takes none in vLLM; leave it at a fixed k")
    for first, last, k in pool.schedule:
        if first != expected or last < first:
            raise ExportError(f"{where}: range {first}..{last} must start at {expected} and not run backwards")
        if k < 1 and not allow_k0:
            raise ExportError(
                f"{where}: k = 0 for batch {first}..{last}: this is not plain decoding "
                "(a drafter still runs); use a plain pool or k >= 1, or allow it on purpose (--allow-k0)"
            )
        if k > k_max:
            raise ExportError(f"{where}: k = {k} is above num_speculative_tokens = {k_max}; vLLM would clamp it")
        expected = last + 1
    if expected - 1 != pool.max_batch:
        raise ExportError(
            f"{where}: ends at batch {expected - 1}, max-num-seqs is {pool.max_batch}; vLLM carries the last k on"
        )


def engine_yaml(
    policy: Policy,
    pool: Pool,
    model_paths: Mapping[str, str] | None = None,
    engine_args: Mapping[str, Any] | None = None,
    *,
    allow_k0: bool = False,
) -> dict[str, Any]:
    """The content of `engine.yaml`: `vllm serve` options to values; false is spelled `no-<option>: true`."""
    paths = resolve_paths(policy, model_paths or {})
    check_path(policy.target.name, paths[policy.target.name])
    extra = normalised(engine_args or {})
    speculation = speculative_config(policy, pool, model_paths, allow_k0=allow_k0)
    _check_draft_parallel(speculation, extra, pool)
    tokens = pool.max_batch * (pool.strategy.k + 1) + PREFILL_CHUNK_TOKENS
    length = check_context(policy, pool)
    engine: dict[str, Any] = {
        "model": paths[policy.target.name],
        "max-num-seqs": pool.max_batch,
        "max-model-len": _at_most(extra.pop("max-model-len", None), length, pool.max_context_tokens),
        "max-num-batched-tokens": _at_least(extra.pop("max-num-batched-tokens", None), tokens, pool),
    }
    if speculation is not None:
        engine["speculative-config"] = speculation
        engine["per-request-spec-decode-metrics"] = "summary"
        _check_sampling(extra, pool)
        if sets_min_p(policy, paths):
            if extra.get("generation-config", "vllm") != "vllm":
                raise ExportError(
                    f"pool {pool.name!r}: the target's generation_config.json sets min_p, which vLLM refuses together "
                    "with speculation; leave generation-config out"
                )
            # else every request would carry min_p, which vLLM refuses together with speculation
            engine["generation-config"] = "vllm"
    return engine | extra


def _check_draft_parallel(speculation: dict[str, Any] | None, extra: dict[str, Any], pool: Pool) -> None:
    """Move the drafter's tensor parallel size into the speculation; refuse options that clash."""
    target_tp, draft_tp = extra.get("tensor-parallel-size", 1), extra.pop(_DRAFT_TP, None)
    if speculation is None:
        return
    if draft_tp is not None and pool.strategy.drafter is not None:
        if draft_tp not in (1, target_tp):
            raise ExportError(f"{_DRAFT_TP} {draft_tp}: vLLM takes 1 or the target's {target_tp}")
        speculation["draft_tensor_parallel_size"] = draft_tp
    if pool.strategy.method == "ngram" and extra.get("async-scheduling") is True:
        raise ExportError(f"pool {pool.name!r}: vLLM refuses async-scheduling with ngram; leave the option out")
    if pool.schedule is not None and extra.get("data-parallel-size", 1) != 1:
        raise ExportError(
            f"pool {pool.name!r}: with data-parallel-size above 1 vLLM ignores the schedule; use a fixed k"
        )


def _check_sampling(extra: Mapping[str, Any], pool: Pool) -> None:
    """Refuse options whose every request vLLM would turn away from a speculating engine."""
    if "logits-processors" in extra:
        raise ExportError(f"pool {pool.name!r}: vLLM refuses logits-processors together with speculation; leave it out")
    override = extra.get("override-generation-config")
    if override is not None and "min_p" in (override if isinstance(override, Mapping) else str(override)):
        raise ExportError(
            f"pool {pool.name!r}: override-generation-config holds min_p, which vLLM refuses together with speculation"
        )


def _at_most(asked: Any, limit: int, needed: int) -> int:
    if asked is None:
        return limit
    if isinstance(asked, bool) or not isinstance(asked, int) or not needed <= asked <= limit:
        raise ExportError(f"max-model-len {asked!r}: the pool's contexts need {needed}, its models allow {limit}")
    return asked


def _at_least(asked: Any, needed: int, pool: Pool) -> int:
    if asked is None:
        return needed
    if isinstance(asked, bool) or not isinstance(asked, int) or asked < needed:
        raise ExportError(
            f"max-num-batched-tokens {asked!r} is below {needed} = max_batch {pool.max_batch} x "
            f"(k {pool.strategy.k} + 1) + one prefill chunk of {PREFILL_CHUNK_TOKENS}"
        )
    return asked
