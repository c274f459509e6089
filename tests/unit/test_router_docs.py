"""The Python that docs/router.md and docs/export.md show runs as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit import policies

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["router.md", "export.md"])
def test_the_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.policy.json").write_text(policies.policy().model_dump_json(), "utf-8")
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), {})
    assert capsys.readouterr().out.strip()
