"""The prose is plain English: it names the role, the value or the person that it speaks of."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("weft", "tests", "benchmarks", "docs", "examples", ".github")
TEXTS = sorted(
    path
    for path in (*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*")))
    if path.suffix in {".py", ".md", ".yml"} and path != Path(__file__)
)
VAGUE = re.compile(r"\b(?:whoever|whomever|somebody|nobody|so many)\b", re.IGNORECASE)
MAX_TERMS = 40


def test_no_text_uses_a_vague_word() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in TEXTS
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if VAGUE.search(line)
    ]
    assert len(TEXTS) > 300
    assert not found, "name the role, the caller, the value or the number:\n" + "\n".join(found)


def test_the_vague_words_are_found_in_a_sentence() -> None:
    assert VAGUE.search("Whoever reads it waits for nobody.")
    assert not VAGUE.search("The reader does not wait.")


def test_the_glossary_has_one_line_per_term_and_at_most_forty() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ")][2:]
    terms = [row.split("|")[1].strip() for row in rows]
    assert 0 < len(terms) <= MAX_TERMS
    assert len(set(terms)) == len(terms)
    assert all(row.count("|") == 3 and row.endswith(". |") for row in rows)
