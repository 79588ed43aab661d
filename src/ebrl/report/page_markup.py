"""HTML and SVG as text in which nothing can be forgotten to be escaped: plain text is, markup is not."""

from __future__ import annotations

import html
from collections.abc import Iterable

_VOID = frozenset({"meta", "br", "line", "rect", "path", "circle"})


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: object) -> Markup:
    """One element.

    Args:
        name: of the element.
        children: what is in it; all that is not ``Markup`` is escaped.
        attributes: ``class_`` stands for ``class``, other underscores for hyphens; None leaves one out.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID and not children:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{joined(children)}</{name}>")


def joined(children: Iterable[str]) -> Markup:
    """All children one after the other."""
    return Markup("".join(child if isinstance(child, Markup) else html.escape(child) for child in children))


def table(head: Iterable[str], rows: Iterable[Iterable[str]], *, class_: str | None = None) -> Markup:
    """A table; its first column names the row."""
    top = tag("tr", *(tag("th", cell, scope="col") for cell in head))
    body = [
        tag("tr", *(tag("td", cell) if column else tag("th", cell, scope="row") for column, cell in enumerate(row)))
        for row in rows
    ]
    whole = tag("table", tag("thead", top), tag("tbody", *body), class_=class_)
    return tag("div", whole, class_="wide")


def facts(pairs: Iterable[tuple[str, str]]) -> Markup:
    """Names with what they are."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs))


def _text(value: object) -> str:
    """Numbers with at most two digits after the point."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
