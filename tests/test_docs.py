"""The pages do what they say: their Python runs, block after block, and their links lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
names = {page: str(page.relative_to(ROOT)) for page in PAGES}


def blocks(page: Path) -> list[tuple[int, str]]:
    """(line number, code) of each Python block."""
    text = page.read_text()
    return [
        (text.count("\n", 0, found.start(1)), found[1])
        for found in re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    ]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=names.get)
def test_code_runs(page):
    names_of_page = {"__name__": "page"}
    for line, code in blocks(page):
        exec(compile("\n" * line + code, page, "exec"), names_of_page)


@pytest.mark.parametrize("page", PAGES, ids=names.get)
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).is_file(), target
