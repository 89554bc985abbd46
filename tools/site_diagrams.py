"""Diagrams of the internals, drawn when the site is built.

The pages have them as Mermaid, which GitHub draws. Mermaid itself is a script that the site would have to fetch, so the
two kinds that the pages use are drawn here: a sequence diagram as SVG, and a state diagram, whose many arrows would
cross, as a table of its transitions.
"""

from __future__ import annotations

import html
import re
import textwrap

_FENCE = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TRANSITION = re.compile(r"(?P<before>\S+) --> (?P<after>\S+?)(?:: (?P<events>.*))?")
_PARTICIPANT = re.compile(r"participant (?P<key>\w+) as (?P<name>.*)")
_MESSAGE = re.compile(r"(?P<sender>\w+)->>(?P<receiver>\w+): (?P<text>.*)")
_NOTE = re.compile(r"Note over (?P<over>[\w,]+): (?P<text>.*)")

_LANE, _MARGIN, _LINE, _CHARS = 230, 120, 17, 34
"""Pixels from one participant to the next, from the edge to the first, and of a line of text; characters in a line."""

_STYLE = (
    'text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;font-size:13px;fill:#1f2933}'
    ".lane{stroke:#9fb3c8;stroke-dasharray:4 4}.head{fill:#e6f6f4;stroke:#0c6b58}.note{fill:#fff7e0;stroke:#b7791f}"
    ".arrow{stroke:#334e68;stroke-width:1.5;fill:none;marker-end:url(#tip)}.part{fill:#52606d;font-style:italic}"
)


def drawn(markdown: str) -> str:
    """The page with its diagrams in place of their Mermaid sources. Raises `ValueError` for a kind it cannot draw."""
    return _FENCE.sub(lambda match: _drawn(match[1]), markdown)


def _drawn(source: str) -> str:
    kind, *lines = [line.strip() for line in source.strip().splitlines()]
    if kind == "stateDiagram-v2":
        return _transitions(lines)
    if kind == "sequenceDiagram":
        return _Sequence(lines).svg()
    raise ValueError(f"the site cannot draw a diagram of kind {kind!r}: see tools/site_diagrams.py")


def _transitions(lines: list[str]) -> str:
    """A table: the start, then each arrow with the events that take it."""
    rows = ["| from | to | on |", "|---|---|---|"]
    for line in lines:
        match = _TRANSITION.fullmatch(line)
        if match is None:
            raise ValueError(f"the site cannot draw {line!r} of a state diagram")
        before = "(start)" if match["before"] == "[*]" else match["before"]
        events = ", ".join(f"`{event}`" for event in (match["events"] or "").split(", ") if event)
        rows.append(f"| {before} | {match['after']} | {events} |")
    return "\n".join(rows)


class _Sequence:
    """A sequence diagram: lanes from left to right, messages from top to bottom."""

    def __init__(self, lines: list[str]) -> None:
        self.names: dict[str, str] = {}
        self.shapes: list[str] = []
        self.y = 60
        for line in lines:
            self._add(line)

    def _x(self, key: str) -> int:
        return _MARGIN + _LANE * list(self.names).index(key)

    def _add(self, line: str) -> None:
        if match := _PARTICIPANT.fullmatch(line):
            self.names[match["key"]] = match["name"]
        elif match := _MESSAGE.fullmatch(line):
            self._message(self._x(match["sender"]), self._x(match["receiver"]), match["text"])
        elif match := _NOTE.fullmatch(line):
            self._note([self._x(key) for key in match["over"].split(",")], match["text"])
        elif line.startswith(("par ", "and", "end")):
            words = {"par": line.removeprefix("par "), "and": "at the same time", "end": ""}[line.split(maxsplit=1)[0]]
            if words:
                self.y += 26
                self.shapes.append(_text(12, self.y, words, "part", "start"))
        else:
            raise ValueError(f"the site cannot draw {line!r} of a sequence diagram")

    def _message(self, sender: int, receiver: int, text: str) -> None:
        lines = textwrap.wrap(text, _CHARS)
        self.y += 14 + _LINE * len(lines)
        top = self.y - _LINE * (len(lines) - 1)
        if sender == receiver:
            self.shapes += [_text(sender + 14, top + _LINE * n, part, "", "start") for n, part in enumerate(lines)]
            path = f"M{sender} {self.y + 6}h10v10h-10"
            self.y += 10
        else:
            middle = (sender + receiver) // 2
            self.shapes += [_text(middle, top + _LINE * n, part) for n, part in enumerate(lines)]
            path = f"M{sender} {self.y + 6}H{receiver}"
        self.shapes.append(f'<path class="arrow" d="{path}"/>')

    def _note(self, over: list[int], text: str) -> None:
        left, right = min(over) - 110, max(over) + 110
        chars = (right - left) // 7
        lines = [part for row in text.split("<br/>") for part in textwrap.wrap(row, chars)]
        height = _LINE * len(lines) + 10
        self.y += 12
        self.shapes.append(
            f'<rect class="note" x="{left}" y="{self.y}" width="{right - left}" height="{height}" rx="3"/>'
        )
        middle = (left + right) // 2
        self.shapes += [_text(middle, self.y + 18 + _LINE * number, line) for number, line in enumerate(lines)]
        self.y += height

    def svg(self) -> str:
        width, height = 2 * _MARGIN + _LANE * (len(self.names) - 1) + 60, self.y + 30
        heads = []
        for key, name in self.names.items():
            x = self._x(key)
            heads += [
                f'<path class="lane" d="M{x} 46V{height - 10}"/>',
                f'<rect class="head" x="{x - 100}" y="12" width="200" height="34" rx="4"/>',
                _text(x, 34, name),
            ]
        tip = '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        # One line: Markdown ends a block of HTML at an empty one.
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" style="max-width:100%" role="img">'
            f"<title>{html.escape(', '.join(self.names.values()))}</title><style>{_STYLE}</style><defs>{tip}"
            f'<path d="M0 0 8 4 0 8z" fill="#334e68"/></marker></defs><rect width="{width}" height="{height}" rx="8" '
            f'fill="#f8fafc"/>{"".join([*heads, *self.shapes])}</svg>'
        )


def _text(x: int, y: int, words: str, kind: str = "", anchor: str = "middle") -> str:
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}"'
        + (f' class="{kind}"' if kind else "")
        + f">{html.escape(words)}</text>"
    )
