"""Lists as the pages show them: filtered, sorted and cut into pages by the server. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlencode

T = TypeVar("T")

PAGE_ROWS: Final = 100
FILTER_MAX: Final = 200
_PAGE_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Wish:
    """What the address of a page asks for. `sort`: a column's name, with "-" before it from the greatest down."""

    q: str = ""
    sort: str = ""
    page: int = 1

    @staticmethod
    def of(query: Mapping[str, str]) -> Wish:
        """What is not understood is as if it were not there."""
        page = query.get("page", "")
        number = int(page) if page.isascii() and page.isdigit() and len(page) < 8 else 1
        return Wish(query.get("q", "")[:FILTER_MAX], query.get("sort", "")[:FILTER_MAX], min(max(number, 1), _PAGE_MAX))

    def address(self, **changes: Any) -> str:
        """The same page with another wish: `?q=…`."""
        wished = replace(self, **changes)
        parts = {"q": wished.q, "sort": wished.sort, "page": wished.page if wished.page > 1 else ""}
        return "?" + urlencode({name: value for name, value in parts.items() if value})


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """`name`: of the field, also in JSON. `key`: what is sorted by, if it is not the field. `kind`: how it is shown, a
    macro of the templates. Numbers are sorted from the greatest down first; what is drawn is not sorted."""

    name: str
    title: str
    kind: str = "text"
    key: Callable[[T], Any] | None = None

    @property
    def right(self) -> bool:
        return self.kind in ("count", "bytes", "rate", "ago", "duration", "seconds")

    @property
    def sorts(self) -> bool:
        return self.kind != "spark"


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """One page of a list: `rows` of `count` that fit the filter, of `known` in all."""

    columns: Sequence[Column[T]]
    rows: Sequence[T]
    wish: Wish
    sorted_by: str
    downwards: bool
    page: int
    pages: int
    count: int
    known: int

    def sort_address(self, column: Column[T]) -> str:
        """Sorts by that column; the other way round if it is sorted by that already."""
        downwards = not self.downwards if column.name == self.sorted_by else column.right
        return self.wish.address(sort=f"{'-' if downwards else ''}{column.name}", page=1)


def listed(
    rows: Sequence[T],
    columns: Sequence[Column[T]],
    wish: Wish,
    text: Callable[[T], str],
    default: str,
    page_rows: int = PAGE_ROWS,
) -> Listed[T]:
    """The page that is wished for, the last one if there are fewer. `text`: what the filter looks into. `default`: how
    it is sorted unless something else is wished."""
    wanted = wish.q.casefold()
    fit = [row for row in rows if wanted in text(row).casefold()] if wanted else list(rows)
    keys = {column.name: column.key or attrgetter(column.name) for column in columns if column.sorts}
    name, downwards = wish.sort.removeprefix("-"), wish.sort.startswith("-")
    if name not in keys:
        name, downwards = default.removeprefix("-"), default.startswith("-")
    fit.sort(key=text)
    fit.sort(key=keys[name], reverse=downwards)
    pages = max(1, -(-len(fit) // page_rows))
    page = min(wish.page, pages)
    shown = fit[(page - 1) * page_rows : page * page_rows]
    return Listed(columns, shown, wish, name, downwards, page, pages, len(fit), len(rows))
