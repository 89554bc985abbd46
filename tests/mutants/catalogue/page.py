"""Defects of the page: markup made of data, rows without bound, a connection or a permission that is lost."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_STATIC = "dashboard/static"
_IN_A_BROWSER = ("tests/page/test_page.py",)


def _mutant(name: str, file: str, old: str, new: str, why: str) -> Mutant:
    return Mutant(name, OWN, f"{_STATIC}/{file}", old, new, why, seeds=0, tests=_IN_A_BROWSER)


MUTANTS = (
    _mutant(
        "A pipeline without event time is not told so",
        "views/watermarks.js",
        "this.missing.hidden = operators.some((each) => each.watermark_ms !== null);",
        "this.missing.hidden = true;",
        "The view of watermarks has dashes alone, and nothing says why.",
    ),
    _mutant(
        "A recovery stands still in the page until its next phase",
        "views/recovery.js",
        "    this.#countOn(this.newest[0]);\n",
        "",
        "Workers that take minutes to start look as if they had just begun.",
    ),
    _mutant(
        "Folding hides the user's frames too",
        "flame.js",
        'if (frame.owner === "penstock" && before?.owner === "penstock")',
        "if (before)",
        "The flame graph shows one frame, and no function of the user.",
    ),
    _mutant(
        "A search of the profiler is case-sensitive",
        "flame.js",
        "includes(text.toLowerCase())",
        "includes(text)",
        "A search for a class by its name finds nothing.",
    ),
    _mutant(
        "Each view is fetched twice as the page opens",
        "main.js",
        "    if (!this.isOpening) {\n",
        "    {\n",
        "The first seconds of a page cost the driver twice as much.",
    ),
    _mutant(
        "A name in the page is written as markup",
        "dom.js",
        "if (element.textContent !== wanted) element.textContent = wanted;",
        "if (element.textContent !== wanted) element.innerHTML = wanted;",
        "Whoever names an operator or a key could change the page, and with a laxer policy run scripts in it.",
    ),
    _mutant(
        "A link of the page may be a script",
        "dom.js",
        "  if (!/^https?:\\/\\//i.test(address)) return;\n",
        "",
        "An address from the server with javascript: in front would run with the token of the reader.",
    ),
    _mutant(
        "All rows of a table are in the document",
        "table.js",
        "const to = Math.min(this.rows.length, from + visible + 2 * SPARE_ROWS);",
        "const to = this.rows.length;",
        "A thousand subtasks or ten thousand checkpoints would make the page stand still.",
    ),
    _mutant(
        "The page does not look for a server that was gone",
        "live.js",
        "    this.retry = setTimeout(() => this.open(), delay);\n",
        "",
        "After a moment without network the page would show old figures until it is loaded again.",
    ),
    _mutant(
        "The stream of events takes the permission for orders back",
        "main.js",
        "if (isAnswer) this.orders",
        "this.orders",
        "The stream carries no token: the page would be read-only again a second after the token was accepted.",
    ),
)
