"""Training a drafter for a tiny random target: loss falls, a resumed run equals an unbroken one."""

import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from selector.errors import SelectorError, WorkloadError
from selector.training.__main__ import main
from selector.training.rows import Row, grouped, prompt_fingerprint, read_rows

VOCABULARY = 64


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers that count upwards: easy to learn."""
    file = tmp_path_factory.mktemp("data") / "rows.jsonl"
    draw = random.Random(0)
    rows = []
    for _ in range(120):
        start = draw.randrange(VOCABULARY)
        prompt = [draw.randrange(VOCABULARY) for _ in range(6)]
        rows.append({"p": prompt, "r": [(start + i) % VOCABULARY for i in range(20)]})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return file


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of six layers."""
    torch = pytest.importorskip("torch")
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("target")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=6,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        max_position_embeddings=128, tie_word_embeddings=True,
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]  # transformers' own
    model.save_pretrained(folder)
    return folder


def test_rows_are_read_and_the_hold_out_never_moves(data: Path) -> None:
    rows = read_rows(data, VOCABULARY)
    held = {row.prompt for row in rows if row.held_out}
    assert 0 < len(held) < 20
    assert {row.prompt for row in reversed(rows) if row.held_out} == held
    assert Row((1, 2, 3), (4,) * 20).held_out == Row((1, 2, 3), (5,) * 9).held_out


def test_batches_group_rows_of_similar_length() -> None:
    rows = [Row((1,), (2,) * n) for n in (30, 10, 31, 11)]
    assert [[len(r.answer) for r in batch] for batch in grouped(rows, 2)] == [[10, 11], [30, 31]]


def test_fingerprint_ignores_case_and_white_space_only() -> None:
    assert prompt_fingerprint(" Write\n a  poem ") == prompt_fingerprint("write a poem")
    assert prompt_fingerprint("write a poem") != prompt_fingerprint("write a poem.")


@pytest.mark.embedded
@pytest.mark.parametrize("kind", ["eagle", "eagle3", "draft"])
def test_loss_falls_and_a_resumed_run_equals_an_unbroken_one(
    kind: str, target: Path, data: Path, tmp_path: Path
) -> None:
    import torch

    from selector.training.draft import new_draft
    from selector.training.eagle import new_eagle
    from selector.training.eagle3 import new_head
    from selector.training.features import FeatureCache, Target
    from selector.training.loop import Loop, Plan

    torch.set_num_threads(1)
    build = {"eagle": new_eagle, "eagle3": new_head, "draft": new_draft}[kind]
    rows = [row for row in read_rows(data, VOCABULARY) if not row.held_out]
    model = Target(target)
    batches = FeatureCache(model, grouped(rows, 8), 2**30)

    def loop(out: Path) -> Loop:
        out.mkdir(exist_ok=True)
        torch.manual_seed(0)
        return Loop(build(model, rows), batches, Plan(minutes=1), out)

    def ticks(steps: int, loop: Loop) -> list[str]:
        """Run with a clock that gives every step the same share of the plan's minute, 60 steps in all."""
        said: list[str] = []
        times = iter([float(i) for i in range(1000)])
        total = loop.plan.minutes * 60
        if steps < total:

            def stop_after() -> float:
                now = next(times)
                if now > steps:
                    raise KeyboardInterrupt
                return now

            with pytest.raises(KeyboardInterrupt):
                loop.run(said.append, stop_after)
        else:
            loop.run(said.append, lambda: next(times))
        return said

    unbroken = loop(tmp_path / "unbroken")
    with torch.no_grad():
        first = unbroken.trainee.loss(batches[0]).item()
    ticks(60, unbroken)
    with torch.no_grad():
        last = unbroken.trainee.loss(batches[0]).item()
    assert last < first

    broken = loop(tmp_path / "broken")
    ticks(25, broken)
    again = loop(tmp_path / "broken")
    again.resume()
    assert 0 < again.progress.step < 60
    ticks(60, again)
    assert again.progress.elapsed_seconds == unbroken.progress.elapsed_seconds
    for name, parameter in unbroken.named.items():
        torch.testing.assert_close(again.named[name], parameter, rtol=1e-2, atol=1e-3)


@pytest.mark.embedded
@pytest.mark.parametrize("kind", ["eagle", "eagle3", "draft"])
def test_a_training_writes_a_drafter_that_can_be_trained_on(
    kind: str, target: Path, data: Path, tmp_path: Path
) -> None:
    from selector.training.run import Options, train

    said: list[str] = []
    out = tmp_path / "first"
    train(Options(kind, target, data, out, minutes=0.03, threads=1), said.append)
    config = json.loads((out / "config.json").read_bytes())
    assert config["architectures"] == ["LlamaForCausalLMEagle3" if kind == "eagle3" else "LlamaForCausalLM"]
    assert config["num_hidden_layers"] == (2 if kind == "draft" else 1)
    assert any("hold-out acceptance after" in line for line in said)
    before, after = train(
        Options(kind, target, data, tmp_path / "b", minutes=0, start_from=out, threads=1), said.append
    )
    assert before == after
    assert 0 <= before.recorded[2] <= before.recorded[1] <= before.recorded[0] <= 1


@pytest.mark.embedded
def test_a_checkpoint_of_another_draft_vocabulary_is_refused(target: Path, data: Path, tmp_path: Path) -> None:
    from selector.training.eagle3 import new_head
    from selector.training.features import FeatureCache, Target
    from selector.training.loop import Loop, Plan

    rows, model = read_rows(data, VOCABULARY), Target(target)
    batches = FeatureCache(model, grouped(rows, 8), 0)
    Loop(new_head(model, rows, 16), batches, Plan(minutes=1), tmp_path).save()
    with pytest.raises(SelectorError, match="holds another drafter"):
        Loop(new_head(model, rows, 32), batches, Plan(minutes=1), tmp_path).resume()
    with pytest.raises(SelectorError, match="nothing to resume"):
        Loop(new_head(model, rows, 16), batches, Plan(minutes=1), tmp_path / "other").resume()


@pytest.mark.embedded
def test_chain_acceptance_equals_drafting_one_by_one(target: Path, data: Path) -> None:
    """The draft's one-pass count against a plain loop that feeds each draft back."""
    import torch

    from selector.training.draft import new_draft
    from selector.training.features import FeatureCache, Target
    from selector.training.trainee import POSITIONS, evaluate

    rows = [row for row in read_rows(data, VOCABULARY) if row.held_out]
    model = Target(target)
    draft = new_draft(model, rows)
    counted = evaluate(draft, FeatureCache(model, grouped(rows, 8), 2**30)).recorded
    hits, chains = [0] * POSITIONS, [0] * POSITIONS
    with torch.no_grad():
        for row in rows:
            for t in range(1, len(row.answer)):
                text = list(row.prompt + row.answer[:t])
                right = True
                for i in range(min(POSITIONS, len(row.answer) - t)):
                    guess = int(draft.model(torch.tensor([text])).logits[0, -1].argmax())
                    right = right and guess == row.answer[t + i]
                    text.append(guess)
                    hits[i] += right
                    chains[i] += 1
    assert counted == pytest.approx([h / c for h, c in zip(hits, chains, strict=True)], abs=1e-6)


@pytest.mark.embedded
def test_an_eagle_head_in_training_guesses_what_it_would_draft_in_an_engine(
    target: Path, data: Path, tmp_path: Path
) -> None:
    """As below for EAGLE-1, by the engine's own drafter: the saved head gets accepted what the hold-out figure says."""
    import torch

    from selector.adapters import adapter
    from selector.adapters.base import Recording
    from selector.engines.reference.model import DecoderModel
    from selector.engines.reference.record import record
    from selector.engines.reference.stepper import Sampler
    from selector.strategy import Strategy
    from selector.training.run import Options, train
    from selector.training.trainee import POSITIONS

    engine = DecoderModel(target, "float32", "cpu")
    prompts = [list(row.prompt) for row in read_rows(data, VOCABULARY)]
    answers = record(engine, prompts, [20] * len(prompts), [Sampler()] * len(prompts), frozenset())
    data = tmp_path / "own.jsonl"
    data.write_text("".join(json.dumps({"p": g.prompt_ids, "r": g.output_ids}) + "\n" for g in answers), "utf-8")
    out = tmp_path / "head"
    train(Options("eagle", target, data, out, minutes=0.12, threads=1), lambda _: None)
    counted, _ = train(Options("eagle", target, data, tmp_path / "x", 0, start_from=out, threads=1), lambda _: None)
    strategy = Strategy(method="eagle", drafter="h", num_speculative_tokens=POSITIONS)
    drafter = adapter("eagle").drafter(engine, out, strategy)
    assert drafter is not None
    hits, chains = [0] * POSITIONS, [0] * POSITIONS
    for row in (row for row in read_rows(data, VOCABULARY) if row.held_out):
        tokens = torch.tensor(row.prompt + row.answer)
        engine.tap(drafter.aux_layers)
        _, aux = engine.forward(tokens[None, :-1], engine.new_cache(1, len(tokens)), keep=1)
        assert aux is not None
        accepted, _ = drafter.replay(Recording(tokens, len(row.prompt), aux[0]), POSITIONS)
        for t, a in enumerate(accepted, 1):
            for i in range(min(POSITIONS, len(row.answer) - t)):
                hits[i] += a > i
                chains[i] += 1
    assert counted.recorded[0] > 0.1, "the head learned nothing: the comparison would be empty"
    assert counted.recorded == pytest.approx([h / c for h, c in zip(hits, chains, strict=True)], abs=0.03)


@pytest.mark.embedded
def test_head_in_training_guesses_what_it_would_draft_in_an_engine(target: Path, data: Path) -> None:
    """Three passes over a whole row against a cache that grows one draft at a time, at every position."""
    import torch

    from selector.training.eagle3 import new_head
    from selector.training.features import Target

    row = next(row for row in read_rows(data, VOCABULARY) if row.held_out)
    text = torch.tensor([row.prompt + row.answer])
    model = Target(target)
    head = new_head(model, [row], VOCABULARY)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(std=0.5)
        batch = model.features([row])
        trained = list(head.guesses(batch))
        for t in range(len(row.prompt), text.shape[1] - 3):  # the last known token
            states = head.fc(batch.aux[:, :t].float())
            for i in range(3):
                # The recorded tokens stand in for drafts that were right; feed all again as one causal pass.
                keys = text[:, 1 : t + 1 + i]
                turn = model.rotary(torch.arange(keys.shape[1]))
                out = head.midlayer(model.embedding[keys], states, turn, [])
                drafted = int(head.draft_ids[head.lm_head(head.norm(out[:, -1])).argmax()])
                assert drafted == int(trained[i][0, t])
                states = torch.cat([states, out[:, -1:]], 1)


def test_ids_that_the_target_does_not_have_are_refused_by_line(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    for wrong in (VOCABULARY, -1):
        row = json.dumps({"p": [1, 2], "r": [3] * 11 + [wrong]})
        file.write_text(data.read_text("utf-8").splitlines()[0] + "\n" + row + "\n", "utf-8")
        with pytest.raises(WorkloadError, match=rf"rows.jsonl:2: token id {wrong}, the target has 0 to 63"):
            read_rows(file, VOCABULARY)


@pytest.fixture(scope="module")
def shallow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of one layer."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests import tiny

    folder = tmp_path_factory.mktemp("shallow")
    tiny.engine(folder)
    return folder / "target"


def test_a_shallow_target_takes_an_eagle_head_and_is_refused_for_eagle3(
    shallow: Path, data: Path, tmp_path: Path
) -> None:
    from selector.training.run import Options, train

    before, after = train(Options("eagle", shallow, data, tmp_path, minutes=0, threads=1), lambda _: None)
    assert before == after
    with pytest.raises(SelectorError, match=r"a llama of 1 layers; EAGLE-3 is trained for .* at least 5"):
        train(Options("eagle3", shallow, data, tmp_path, minutes=0, threads=1), lambda _: None)


@pytest.mark.embedded
def test_ctrl_c_leaves_a_checkpoint_that_is_gone_on_with_and_not_overwritten(
    shallow: Path, data: Path, tmp_path: Path
) -> None:
    """The real signal to the real command."""

    def line(*more: str) -> list[str]:
        given = ["--target", str(shallow), "--data", str(data), "--out", str(tmp_path / "head"), "--threads", "1"]
        return [sys.executable, "-u", "-m", "selector.training", "eagle", *given, *more]

    with subprocess.Popen(line("--minutes", "10"), stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        next(said for said in running.stderr if said.startswith("step 20,"))
        running.send_signal(signal.SIGINT)
        told = running.stderr.read()
    assert running.returncode == 130
    assert told.splitlines()[-1].endswith("checkpoint.safetensors, go on with --resume")
    again = subprocess.run(line(), capture_output=True, text=True, check=False)
    assert (again.returncode, "an earlier training; go on with --resume" in again.stderr) == (1, True)
    more = subprocess.run(line("--resume", "--minutes", "0.001"), capture_output=True, text=True, check=False)
    assert more.returncode == 0, more.stderr
    assert "its 0.001 minutes are used up" in more.stderr
    assert (tmp_path / "head" / "model.safetensors").is_file()


@pytest.mark.parametrize("damage", ["cut", "header", "no notes", "bad notes", "a weight less", "a moment less"])
def test_a_damaged_checkpoint_is_refused_by_name(shallow: Path, data: Path, tmp_path: Path, damage: str) -> None:
    from safetensors.torch import load_file, save_file

    from selector.training.eagle import new_eagle
    from selector.training.features import FeatureCache, Target
    from selector.training.loop import Loop, Plan

    rows, model = read_rows(data, VOCABULARY), Target(shallow, aux=False)
    loop = Loop(new_eagle(model, rows, 16), FeatureCache(model, grouped(rows, 8), 0), Plan(minutes=1), tmp_path)
    loop._step(0.0)
    loop.progress.step = 1
    loop.save()
    loop.resume()
    file = tmp_path / "checkpoint.safetensors"
    whole = file.read_bytes()
    if damage == "cut":
        file.write_bytes(whole[: len(whole) // 2])
    elif damage == "header":
        file.write_bytes(b"\xff" * 64)
    else:
        tensors, note = load_file(file), json.dumps({"drafter": loop.trainee.identity, "step": 1, "elapsed_seconds": 1})
        notes = {"no notes": {}, "bad notes": {"progress": "[]"}}.get(damage, {"progress": note})
        tensors.pop({"a weight less": "weight fc.weight", "a moment less": "exp_avg fc.weight"}.get(damage, ""), None)
        save_file(tensors, file, metadata=notes)
    with pytest.raises(SelectorError, match=r"checkpoint.safetensors: (cannot be read|no checkpoint of|.* is missing)"):
        loop.resume()


@pytest.mark.parametrize(
    "line",
    [
        "eagle --data rows.jsonl --out x --minutes nan",
        "draft --data rows.jsonl --out x --feature-memory inf",
        "data --out x.jsonl --temperature nan",
    ],
)
def test_what_is_no_number_is_refused_before_any_work(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").touch()
    done = CliRunner().invoke(main, [*line.split(), "--target", "."], prog_name="training")
    assert (done.exit_code, f"'{line.split()[-1]}' is not a finite number" in done.output) == (2, True)
