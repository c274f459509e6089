"""What serving engines call the numbers we read from /metrics."""

from __future__ import annotations

#: Our name: theirs, vLLM's (0.32) first, then SGLang's where it has one. `_total` may be there or not.
#: SGLang counts no engine steps, no drafted and no accepted tokens; its spec_accept_* gauges show the latest batches
#: only and cannot be differenced.
COUNTERS: dict[str, tuple[str, ...]] = {
    "engine_steps": ("vllm:iteration_tokens_total_count",),
    "generated_tokens": ("vllm:generation_tokens", "sglang:generation_tokens"),
    "prompt_tokens": ("vllm:prompt_tokens", "sglang:prompt_tokens"),
    "prefix_queries": ("vllm:prefix_cache_queries",),  # tokens, not requests
    "prefix_hits": ("vllm:prefix_cache_hits", "sglang:cached_tokens"),  # tokens
    "drafts": ("vllm:spec_decode_num_drafts", "sglang:spec_verify_calls"),
    "drafted_tokens": ("vllm:spec_decode_num_draft_tokens",),
    "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens",),
    "accepted_per_position": ("vllm:spec_decode_num_accepted_tokens_per_pos",),  # label: position
    "preemptions": ("vllm:num_preemptions",),
    "finished_requests": ("vllm:request_success", "sglang:num_requests"),
}

GAUGES: dict[str, tuple[str, ...]] = {
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs"),
    "kv_usage": ("vllm:kv_cache_usage_perc", "sglang:token_usage"),  # 0 to 1
}
