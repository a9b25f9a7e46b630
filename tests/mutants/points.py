"""Every small change of a source file that a test should notice. Pure: text in, mutants out.

A mutant is one edit of the text, so it can be shown as a line of the file. Left out are: docstrings, annotations,
decorators, default arguments, constants at the top of a module (they are tuning), assertions (the strictness of `zip`
is one), log lines, the words of an error, `__repr__`.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from dataclasses import dataclass, replace

_COMPARED: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
_COMPUTED: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "//",
    ast.FloorDiv: "*",
    ast.Mod: "//",
}
_SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}
_LOGGED = ("log", "_log", "logger", "_logger", "logging", "warnings")
_SHOWN = ("__repr__", "__str__")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One edit: `new` in the place of `old`, which begins at character `at` of the file's text. `line` counts from
    1."""

    file: str
    function: str
    line: int
    at: int
    old: str
    new: str
    code: str
    """The line as it stands in the file, without its indent and its comment."""

    number: int = 1
    """Which of those that would read the same."""

    @property
    def key(self) -> str:
        """The same as long as the function's name and the line stay. The file may be moved or split, comments may
        change."""
        edit = f"{' '.join(self.old.split())} -> {' '.join(self.new.split())}"
        return f"{self.function}: {self.code}: {edit}" + (f" ({self.number})" if self.number > 1 else "")

    def applied(self, text: str) -> str:
        if not text.startswith(self.old, self.at):
            raise ValueError(f"{self.file} is not the text that {self.key!r} was made from")
        return text[: self.at] + self.new + text[self.at + len(self.old) :]


def mutants_of(file: str, text: str) -> list[Mutant]:
    """In the order of the file; those that would not compile are left out."""
    found = sorted(_Points(file, text).found, key=lambda each: (each.at, each.new))
    times: Counter[str] = Counter()
    mutants = []
    for each in dict.fromkeys(found):
        times[each.key] += 1
        if _compiles(each.applied(text)):
            mutants.append(replace(each, number=times[each.key]))
    return mutants


def _compiles(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


class _Points(ast.NodeVisitor):
    """Walks a file once and gathers the edits."""

    def __init__(self, file: str, text: str) -> None:
        self._file = file
        self._text = text
        self._starts = [0]
        for line in text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._comments = _comments(text)
        self._functions: list[str] = []
        self.found: list[Mutant] = []
        self.visit(ast.parse(text))

    def _at(self, line: int, column: int) -> int:
        """The character that an ast's position means: its columns count bytes."""
        start = self._starts[line - 1]
        encoded = self._text[start : self._starts[line]].encode()
        return start + len(encoded[:column].decode())

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _source(self, node: ast.expr) -> str:
        begin, end = self._span(node)
        return self._text[begin:end]

    def _replace(self, begin: int, end: int, new: str) -> None:
        line = self._text.count("\n", 0, begin) + 1
        whole = self._text[self._starts[line - 1] : self._starts[line]]
        code = whole[: self._comments.get(line)].strip()
        self.found.append(Mutant(self._file, ".".join(self._functions), line, begin, self._text[begin:end], new, code))

    def _between(self, left: ast.expr, right: ast.expr, old: str, new: str) -> None:
        """Change the operator that stands between two operands."""
        begin, end = self._span(left)[1], self._span(right)[0]
        gap = self._text[begin:end]
        if gap.count(old) == 1:
            place = begin + gap.index(old)
            self._replace(place, place + len(old), new)

    def _removed(self, node: ast.stmt) -> None:
        self._replace(*self._span(node), "pass")

    # ---------------------------------------------------------------- where not to look

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in _SHOWN:
            return
        self._functions.append(node.name)
        for statement in _without_docstring(node.body):
            self.visit(statement)
        self._functions.pop()

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._functions.append(node.name)
        for statement in _without_docstring(node.body):
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self.visit(statement)
        self._functions.pop()

    def visit_Module(self, node: ast.Module) -> None:
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self.visit(statement)

    def visit_Assert(self, node: ast.Assert) -> None:
        """An assertion guards against our own mistakes: nothing reaches its other side."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Words for a person."""

    def visit_Raise(self, node: ast.Raise) -> None:
        self._removed(node)

    # ---------------------------------------------------------------- expressions

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
            new = _COMPARED[type(operator)]
            self._between(left, right, _written(operator), new)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for index, (left, right) in enumerate(zip(node.values, node.values[1:], strict=False)):
            if len(node.values) == 2:
                self._between(left, right, old, new)
            else:  # `and` binds tighter than `or`: leave one operand out instead
                begin, end = self._span(node.values[0])[0], self._span(node.values[-1])[1]
                kept = [self._source(each) for number, each in enumerate(node.values) if number != index]
                self._replace(begin, end, f" {old} ".join(f"({each})" for each in kept))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._replace(*self._span(node), f"bool({self._source(node.operand)})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        new = _COMPUTED.get(type(node.op))
        if new is not None and not (_is_text(node.left) or _is_text(node.right)):
            old = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%"}[type(node.op)]
            self._between(node.left, node.right, old, new)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if node.value is True or node.value is False:
            self._replace(*self._span(node), str(not node.value))
        elif isinstance(node.value, int):
            self._replace(*self._span(node), str(node.value + 1))

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in _SWAPPED:
            self._replace(*self._span(node.func), _SWAPPED[node.func.id])
        if not _is_logging(node):
            self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        """`strict=True` of a `zip` is an assertion."""
        if node.arg != "strict":
            self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negated(node.test)
        self.generic_visit(node)

    def _negated(self, test: ast.expr) -> None:
        """A condition the other way round, unless a change of its operator does that already."""
        if not isinstance(test, ast.Compare | ast.UnaryOp | ast.Constant):
            self._replace(*self._span(test), f"(not ({self._source(test)}))")

    # ---------------------------------------------------------------- statements

    def visit_If(self, node: ast.If) -> None:
        self._negated(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self._negated(node.test)
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        called = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(called, ast.Call) and not _is_logging(called):
            self._removed(node)
        if not isinstance(called, ast.Constant):
            self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if (
            all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
            and "__init__" not in self._functions
        ):
            self._removed(node)
        self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._removed(node)
        self.visit(node.value)

    def visit_Break(self, node: ast.Break) -> None:
        self._removed(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        self._removed(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None:
            self._removed(node)
        else:
            self.visit(node.value)


def _comments(text: str) -> dict[int, int]:
    """Where the comment of each line that has one begins."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {token.start[0]: token.start[1] for token in tokens if token.type == tokenize.COMMENT}


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0]
    return body[1:] if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) else body


def _written(operator: ast.cmpop) -> str:
    """As it stands in a source."""
    words = {
        ast.Lt: "<",
        ast.LtE: "<=",
        ast.Gt: ">",
        ast.GtE: ">=",
        ast.Eq: "==",
        ast.NotEq: "!=",
        ast.In: "in",
        ast.NotIn: "not in",
        ast.Is: "is",
        ast.IsNot: "is not",
    }
    return words[type(operator)]


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _is_logging(node: ast.Call) -> bool:
    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
    return isinstance(owner, ast.Name) and owner.id in _LOGGED
