"""The vLLM exporter: files that start, refusals with the rule's name, nothing lost on the way."""

from __future__ import annotations

import ast
import json
import shlex
import struct
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from selector.errors import ExportError, PolicyError
from selector.exporters.vllm import engine_yaml, export_vllm, llm_kwargs, speculative_config
from selector.exporters.vllm_checks import resolve_paths, tensor_names
from selector.exporters.vllm_config import check_schedule
from selector.policy import Pool
from selector.strategy import Strategy
from tests.unit import policies

NASTY = '/models/my head\'s "best" $HOME; `x` 日本: #1'


def test_one_folder_per_pool(tmp_path: Path) -> None:
    files = export_vllm(policies.policy(), tmp_path)
    assert sorted(str(f.relative_to(tmp_path)) for f in files) == sorted(
        f"{pool}/{name}"
        for pool in ("lookup", "spec", "plain")
        for name in ("engine.yaml", "llm_kwargs.json", "serve.py", "speculative-config.json", "start.txt")
        if (pool, name) != ("plain", "speculative-config.json")
    )
    assert all(f.is_file() for f in files)


def test_engine_yaml_of_each_pool() -> None:
    policy = policies.policy()
    common = {"model": "/models/target", "max-num-seqs": 8, "max-model-len": 8192}
    assert engine_yaml(policy, policy.pool("spec")) == common | {
        "max-num-batched-tokens": 8 * 5 + 2048,
        "speculative-config": {
            "method": "eagle3",
            "model": "/models/my eagle3 head",
            "num_speculative_tokens": 4,
        },
        "per-request-spec-decode-metrics": "summary",
    }
    assert engine_yaml(policy, policy.pool("lookup"))["speculative-config"] == {
        "method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_min": 2, "prompt_lookup_max": 4,
    }  # fmt: skip
    assert engine_yaml(policy, policy.pool("plain")) == common | {"max-num-batched-tokens": 8 + 2048}


def _export(tmp_path: Path, given: dict[str, Any], **arguments: Any) -> Path:
    policy, pool = policies.one_pool(given)
    export_vllm(policy, tmp_path, **arguments)
    return tmp_path / pool.name


def test_yaml_json_python_and_shell_say_the_same(tmp_path: Path) -> None:
    pool = policies.pool("pool one", schedule=[[1, 2, 4], [3, 8, 1]])
    paths = {policies.HEAD: NASTY, policies.TARGET: "org/It's a target"}
    folder = _export(tmp_path, pool, model_paths=paths, engine_args={"enable_prefix_caching": False, "port": 8001})
    engine = yaml.safe_load((folder / "engine.yaml").read_text("utf-8"))
    assert engine["model"] == "org/It's a target"
    assert engine["no-enable-prefix-caching"] is True
    speculation = json.loads((folder / "speculative-config.json").read_text("utf-8"))
    assert speculation == engine["speculative-config"]
    assert speculation["model"] == NASTY
    assert speculation["num_speculative_tokens_per_batch_size"] == [[1, 2, 4], [3, 8, 1]]
    kwargs = json.loads((folder / "llm_kwargs.json").read_text("utf-8"))
    assert kwargs == llm_kwargs(engine)
    assert kwargs["enable_prefix_caching"] is False
    assert "port" not in kwargs
    assert _python_keywords(folder / "serve.py") == kwargs
    words = [
        shlex.split(line) for line in (folder / "start.txt").read_text("utf-8").splitlines() if line[:5] == "vllm "
    ]
    assert words[0] == ["vllm", "serve", "--config", "engine.yaml"]
    assert words[1][2] == "org/It's a target"
    # C2-10: strict JSON in one shell word, no Python literal
    assert json.loads(words[1][words[1].index("--speculative-config") + 1]) == speculation
    assert words[1][-1] == "8001"


def _python_keywords(file: Path) -> dict[str, Any]:
    calls = [n for n in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(n, ast.Call)]
    return {str(k.arg): ast.literal_eval(k.value) for k in calls[0].keywords}


def test_no_false_ever_stands_in_the_yaml(tmp_path: Path) -> None:
    folder = _export(tmp_path, policies.pool(), engine_args={"async-scheduling": False, "enforce-eager": True})
    text = (folder / "engine.yaml").read_text("utf-8")
    assert "false" not in text
    assert "no-async-scheduling: true" in text
    assert "enforce-eager: true" in text


def test_an_earlier_speculation_file_goes_when_the_pool_turns_plain(tmp_path: Path) -> None:
    folder = _export(tmp_path, policies.pool("main"))
    assert (folder / "speculative-config.json").is_file()
    _export(tmp_path, policies.pool("main", policies.PLAIN))
    assert not (folder / "speculative-config.json").exists()


@given(
    path=st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=60).filter(
        lambda p: p.isprintable() and p.strip() and not p.startswith("-")
    )
)
def test_any_printable_path_survives_yaml_and_python(path: str) -> None:
    policy, pool = policies.one_pool(policies.pool())
    engine = engine_yaml(policy, pool, {policies.HEAD: path, policies.TARGET: path})
    text = yaml.safe_dump(engine, sort_keys=False, allow_unicode=True, width=1000)
    assert yaml.safe_load(text) == engine
    assert (engine["model"], engine["speculative-config"]["model"]) == (path, path)


@pytest.mark.parametrize("path", ["", "  ", "-rf", "--model", "a\nb", "a\0b", "a\rb", "a\x85b", "\ud800"])
@pytest.mark.parametrize("name", [policies.HEAD, policies.TARGET])
def test_a_path_that_vllm_misreads_is_refused(tmp_path: Path, path: str, name: str) -> None:
    with pytest.raises(ExportError, match="model path of"):
        export_vllm(policies.policy(), tmp_path, model_paths={name: path})
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_model_name_lists_the_known_ones() -> None:
    with pytest.raises(ExportError, match=r"'other'.*'org/target 135M', 'my-head'"):
        resolve_paths(policies.policy(), {"other": "/x"})


@pytest.mark.parametrize("name", ["..", ".", "a/b", "a\\b", "-x", ".hidden", " x", "x ", "a\nb", "x" * 101, "c:"])
def test_a_pool_name_that_is_no_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ExportError, match="cannot be a folder"):
        _export(tmp_path, policies.pool(name))
    assert list(tmp_path.iterdir()) == []


def test_pool_names_differing_in_case_are_refused(tmp_path: Path) -> None:
    policy = policies.policy(pools=[policies.pool("A"), policies.pool("a")], classes=[], fallback_pool="a")
    with pytest.raises(ExportError, match="differ only in case"):
        export_vllm(policy, tmp_path)


# C2-22: the shapes of a batch-size schedule, k at most 3, up to batch 128


@pytest.mark.parametrize(
    ("schedule", "complaint"),
    [
        ({"1-16": 3, "64-128": 2}, "pools.0.schedule"),
        ([[1, 16, 5], [17, 128, 2]], "k within 0..3"),
        ([[1, 16, 3], [10, 128, 1]], "follow each other"),
        ([[16, 1, 3]], "follow each other"),
        ([[2, 128, 3]], "follow each other from 1"),
        ([[1, 16, 3], [18, 128, 1]], "follow each other"),
        ([[1, 64, 3]], "ends at 64, max_batch is 128"),
    ],
)
def test_c2_22_a_wrong_schedule_is_refused(schedule: Any, complaint: str) -> None:
    strategy: dict[str, Any] = {"method": "eagle3", "drafter": policies.HEAD, "num_speculative_tokens": 3}
    with pytest.raises(PolicyError, match=complaint):
        policies.one_pool(policies.pool("main", strategy, max_batch=128, schedule=schedule))
    if isinstance(schedule, list):  # and again by the exporter, for a pool built without pydantic's checks
        pool = Pool.model_construct(name="main", strategy=Strategy(**strategy), schedule=schedule, max_batch=128)
        with pytest.raises(ExportError, match="schedule"):
            check_schedule(pool)


@pytest.mark.parametrize("strategy", [
    {"method": "eagle3", "drafter": policies.HEAD, "num_speculative_tokens": 3},
    {"method": "ngram", "num_speculative_tokens": 3, "lookup_min": 1, "lookup_max": 3},
])  # fmt: skip
def test_c2_22_a_list_of_ranges_is_written_as_it_is(strategy: dict[str, Any]) -> None:
    schedule = [[1, 16, 3], [17, 128, 2]]
    policy, pool = policies.one_pool(policies.pool("main", strategy, max_batch=128, schedule=schedule))
    config = speculative_config(policy, pool)
    assert config is not None
    assert config["num_speculative_tokens_per_batch_size"] == schedule


def test_k0_in_a_schedule_only_on_purpose() -> None:
    policy, pool = policies.one_pool(policies.pool(schedule=[[1, 4, 4], [5, 8, 0]]))
    with pytest.raises(ExportError, match=r"k = 0 for batch 5\.\.8.*not plain decoding"):
        speculative_config(policy, pool)
    config = speculative_config(policy, pool, allow_k0=True)
    assert config is not None
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 4, 4], [5, 8, 0]]


@pytest.mark.parametrize("method", ["suffix", "medusa", "ngram_gpu", "none", "something new"])
def test_methods_that_die_on_a_schedule_get_none(method: str) -> None:
    strategy = Strategy.model_construct(method=method, num_speculative_tokens=3)
    pool = Pool.model_construct(name="main", strategy=strategy, schedule=((1, 8, 3),), max_batch=8)
    with pytest.raises(ExportError, match="takes none in vLLM"):
        check_schedule(pool)


def test_k_above_vllms_limit_is_refused() -> None:
    policy, pool = policies.one_pool(policies.pool())
    big = pool.model_copy(update={"strategy": pool.strategy.model_copy(update={"num_speculative_tokens": 129})})
    with pytest.raises(ExportError, match="k = 129 is above 128"):
        speculative_config(policy, big)


def test_a_shorter_drafter_limits_the_server_or_is_refused() -> None:
    short = {policies.HEAD: policies.drafter(max_model_len=2100)}
    policy, pool = policies.one_pool(policies.pool(), drafters=short)
    assert engine_yaml(policy, pool)["max-model-len"] == 2100 - 4
    policy, pool = policies.one_pool(policies.pool(max_context_tokens=2097), drafters=short)
    with pytest.raises(ExportError, match=r"2097 tokens of context \+ k = 4.*holds 2100.*2096"):
        engine_yaml(policy, pool)
    policy, pool = policies.one_pool(policies.pool("plain", policies.PLAIN, max_context_tokens=9000))
    with pytest.raises(ExportError, match=r"9000.*8192"):
        engine_yaml(policy, pool)


def test_a_draft_model_of_another_vocabulary_is_refused() -> None:
    strategy = {"method": "draft_model", "drafter": policies.HEAD, "num_speculative_tokens": 3}
    drafters = {policies.HEAD: policies.drafter("draft_model", vocab_size=151936)}
    policy, pool = policies.one_pool(policies.pool("main", strategy), drafters=drafters)
    with pytest.raises(ExportError, match=r"151936.*49152"):
        speculative_config(policy, pool)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"trust_remote_code": True}, "never runs"),
        ({"no-trust-remote-code": True}, "never runs"),
        ({"model": "x"}, "--model-path"),
        ({"speculative-config": "{}"}, "the policy decides"),
        ({"spec-tokens": 3}, "the policy decides"),
        ({"max_num_seqs": 4}, "max_batch"),
        ({"per-request-spec-decode-metrics": "none"}, "follows from the strategy"),
        ({"a.b": 1}, "not an option name"),
        ({"": 1}, "not an option name"),
        ({"dtype": None}, "has no value"),
        ({"dtype": ""}, "has no value"),
        ({"dtype": "-x.y"}, "starts with '-'"),
        ({"served-model-name": "a\nb"}, "control characters"),
        ({"no-enable-prefix-caching": False}, "'enable-prefix-caching' = true"),
        ({"seed": 1, "--seed": 2}, "given twice"),
        ({"enforce-eager": True, "no_enforce_eager": True}, "given twice"),
        ({"max-num-batched-tokens": 2048}, r"2048 is below 2088 = max_batch 8 x \(k 4 \+ 1\)"),
        ({"logits-processors": ["x:Y"]}, "logits-processors together with speculation"),
        ({"override-generation-config": {"min_p": 0.1}}, "holds min_p"),
        ({"override-generation-config": '{"min_p": 0.1}'}, "holds min_p"),
        ({"sc": {"method": "ngram"}}, "the policy decides it"),
        ({"tp": 4, "tensor-parallel-size": 4}, "given twice"),
        ({"tp": 4, "draft-tensor-parallel-size": 2}, "2: vLLM takes 1 or the target's 4"),
        ({"O": 3}, "not an option name"),
        ({"cc": 3}, "a short form"),
        ({"max-num-seq": 4}, "an abbreviation of 'max-num-seqs'"),
        ({"max-model-len": 100}, "contexts need 2048"),
        ({"max-model-len": 9000}, "models allow 8192"),
        ({"tensor-parallel-size": 4, "draft-tensor-parallel-size": 2}, "2: vLLM takes 1 or the target's 4"),
        ({"compilation-config": {"x": float("nan")}}, "cannot be written as JSON|does not survive"),
    ],
)
def test_engine_options_that_vllm_drops_or_the_policy_owns_are_refused(
    tmp_path: Path, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ExportError, match=complaint):
        _export(tmp_path, policies.pool(), engine_args=options)


def test_options_that_do_not_go_with_the_strategy_are_refused() -> None:
    policy, pool = policies.one_pool(policies.pool("main", policies.NGRAM))
    with pytest.raises(ExportError, match="async-scheduling with ngram"):
        engine_yaml(policy, pool, engine_args={"async-scheduling": True})
    policy, pool = policies.one_pool(policies.pool(schedule=[[1, 8, 2]]))
    with pytest.raises(ExportError, match="ignores the schedule"):
        engine_yaml(policy, pool, engine_args={"data-parallel-size": 2})


def test_short_options_are_read_as_the_long_ones_and_truth_as_a_boolean() -> None:
    policy, pool = policies.one_pool(policies.pool(schedule=[[1, 8, 2]]))
    with pytest.raises(ExportError, match="ignores the schedule"):
        engine_yaml(policy, pool, engine_args={"dp": 2})
    engine = engine_yaml(policy, pool, engine_args={"tp": 2, "enforce-eager": "True", "async-scheduling": "false"})
    assert (engine["tensor-parallel-size"], engine["enforce-eager"]) == (2, True)
    assert engine["no-async-scheduling"] is True


def test_start_txt_says_where_the_policy_was_measured(tmp_path: Path) -> None:
    text = (_export(tmp_path, policies.pool()) / "start.txt").read_text("utf-8")
    engine = policies.policy().engine
    assert f"Measured on the {engine.name} engine {engine.version}" in text
    assert "check the gains there" in text


def test_draft_tensor_parallel_size_goes_into_the_speculation() -> None:
    policy, pool = policies.one_pool(policies.pool())
    engine = engine_yaml(policy, pool, engine_args={"tensor-parallel-size": 4, "draft_tensor_parallel_size": 1})
    assert engine["speculative-config"]["draft_tensor_parallel_size"] == 1
    assert "draft-tensor-parallel-size" not in engine
    policy, pool = policies.one_pool(policies.pool("main", policies.PLAIN))
    assert engine_yaml(policy, pool, engine_args={"draft-tensor-parallel-size": 1}) == engine_yaml(policy, pool)


def _head(folder: Path, config: dict[str, Any], tensors: list[str]) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    header = json.dumps(
        {"__metadata__": {}} | {t: {"dtype": "I64", "shape": [0], "data_offsets": [0, 0]} for t in tensors}
    )
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header.encode())


@pytest.mark.parametrize(
    ("config", "tensors", "complaint"),
    [
        ({"draft_vocab_size": 8192}, ["fc.weight"], "8192 differs from the target's 49152.*no 'd2t'"),
        ({"draft_vocab_size": 8192}, ["fc.weight", "d2t"], None),
        ({"draft_vocab_size": 49152}, ["fc.weight"], None),
        ({"vocab_size": 49152}, ["fc.weight"], None),
        ({"architectures": ["LlamaForCausalLMEagle"]}, ["d2t"], "refuses eagle3 with architectures LlamaForCaus"),
    ],
)
def test_a_local_eagle3_head_is_looked_at(
    tmp_path: Path, config: dict[str, Any], tensors: list[str], complaint: str | None
) -> None:
    _head(tmp_path / "head", config, tensors)
    policy, pool = policies.one_pool(policies.pool())
    paths = {policies.HEAD: str(tmp_path / "head")}
    if complaint is None:
        assert speculative_config(policy, pool, paths) is not None
    else:
        with pytest.raises(ExportError, match=complaint):
            speculative_config(policy, pool, paths)


@pytest.mark.parametrize("content", [b"", b"\x01", b"\xff" * 8, b"\x05" + b"\0" * 7 + b"{oops"])
def test_a_damaged_safetensors_header_is_an_export_error(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(ExportError, match="safetensors file"):
        tensor_names(file)


def test_min_p_in_the_targets_defaults_is_switched_off_where_pools_speculate(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"min_p": 0.1}', "utf-8")
    policy = policies.policy()
    paths = {policies.TARGET: str(tmp_path)}
    assert engine_yaml(policy, policy.pool("spec"), paths)["generation-config"] == "vllm"
    assert "generation-config" not in engine_yaml(policy, policy.pool("plain"), paths)
    with pytest.raises(ExportError, match=r"sets min_p.*leave generation-config out"):
        engine_yaml(policy, policy.pool("spec"), paths, {"generation-config": "auto"})


def test_an_output_folder_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(ExportError, match="cannot be written"):
        export_vllm(policies.policy(), tmp_path / "file")
