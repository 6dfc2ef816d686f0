"""Small random changes of the sources that tests should notice; `scripts/mutants.py` injects them.

A change swaps an arithmetic operator or a comparison, swaps `and` and `or`, negates a condition, or
alters a number or a truth value.  Left alone are annotations, docstrings and other strings,
decorators, `raise` and `assert` statements, log messages, `__all__`, `if TYPE_CHECKING`,
`zip(strict=...)`, and joins of paths and texts.

A change is known by the function or class it is in, the text of its statement, and its place in the
statement.  It is the same change after the function has moved to another file.
"""

from __future__ import annotations

import ast
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

OPERATORS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: (r"\+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: (r"\*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.Pow: (r"\*\*", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: (r"\|", "&"),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
LOGGERS = {"logger", "logging", "LOG", "log"}


class Change(NamedTuple):
    """What makes a change the same in two versions of the sources."""

    scope: str  # qualified name in its module, "" at module level
    statement: str
    repetition: int  # of the same statement in its scope
    place: int  # among the changes of the statement
    change: str


class Site(NamedTuple):
    """A change with where it is in one version: bytes start to end of the file become `text`."""

    key: Change
    file: str
    start: int
    end: int
    text: str
    lines: tuple[int, int]  # of the statement, or of its head

    def inject(self, package: Path) -> bytes:
        """Return the file's content with the change."""
        content = (package / self.file).read_bytes()
        return content[: self.start] + self.text.encode() + content[self.end :]


class _File:
    """Finds the changes of one file."""

    def __init__(self, file: str, content: bytes) -> None:
        self.file = file
        self.content = content
        starts = [0]
        for line in content.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        self.starts = starts
        self.seen: Counter[tuple[str, str]] = Counter()

    def sites(self) -> Iterator[Site]:
        yield from self._body(ast.parse(self.content).body, "")

    def _body(self, body: list[ast.stmt], scope: str) -> Iterator[Site]:
        for statement in body:
            yield from self._statement(statement, scope)

    def _statement(self, node: ast.stmt, scope: str) -> Iterator[Site]:
        if _is_left_alone(node):
            return
        inner = f"{scope}.{node.name}".lstrip(".") if isinstance(node, SCOPES) else scope
        if heads := _list_heads(node):
            yield from self._changes(node, heads, inner)
        for part in _list_bodies(node):
            yield from self._body(part, inner)

    def _changes(self, node: ast.stmt, heads: list[ast.AST], scope: str) -> Iterator[Site]:
        text = "; ".join(ast.unparse(head) for head in heads)
        if heads != [node]:
            text = f"{type(node).__name__}: {text}"
        repetition = self.seen[scope, text]
        self.seen[scope, text] += 1
        found: list[tuple[int, int, str, str]] = []
        if isinstance(node, ast.If | ast.While):
            found.append(self._negated(node.test))
        for head in heads:
            self._collect(head, found)
        lines = (heads[0].lineno, max(head.end_lineno for head in heads))  # type: ignore[attr-defined]
        for place, (start, end, new, change) in enumerate(found):
            key = Change(scope, text, repetition, place, change)
            yield Site(key, self.file, start, end, new, lines)

    def _collect(self, node: ast.AST, found: list[tuple[int, int, str, str]]) -> None:
        """Append all changes at and below a node, in the order of the tree."""
        if isinstance(node, ast.JoinedStr):
            return  # Python 3.11 does not say where in the file its parts are
        if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in OPERATORS:
            left, right = (
                (node.left, node.right)
                if isinstance(node, ast.BinOp)
                else (node.target, node.value)
            )
            if not (_is_text(left) or _is_text(right) or _is_type(left) or _is_type(right)):
                found.append(self._swapped(left, right, node.op))
        elif isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
                found.append(self._swapped(left, right, operator))
        elif isinstance(node, ast.BoolOp):
            found.append(self._swapped(node.values[0], node.values[1], node.op, node))
        elif isinstance(node, ast.IfExp):
            found.append(self._negated(node.test))
        elif isinstance(node, ast.comprehension):
            found += [self._negated(test) for test in node.ifs]
        elif isinstance(node, ast.Constant):
            found += self._altered(node)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_params"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not _is_left_alone(child):
                    self._collect(child, found)

    def _at(self, line: int, column: int) -> int:
        return self.starts[line - 1] + column

    def _ends(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, ast.expr)
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._at(node.lineno, node.col_offset), self._at(
            node.end_lineno, node.end_col_offset
        )

    def _negated(self, test: ast.expr) -> tuple[int, int, str, str]:
        start, end = self._ends(test)
        text = self.content[start:end].decode()
        return start, end, f"(not ({text}))", f"not ({ast.unparse(test)})"

    def _swapped(
        self, left: ast.AST, right: ast.AST, operator: ast.AST, whole: ast.BoolOp | None = None
    ) -> tuple[int, int, str, str]:
        pattern, new = OPERATORS[type(operator)]
        if whole is not None:  # every `and` of a chain; brackets keep what binds closer together
            start, end = self._ends(whole)
            parts = [self.content[slice(*self._ends(value))].decode() for value in whole.values]
            text = f" {new} ".join(f"({part})" for part in parts)
            return start, end, f"({text})", f"{pattern} to {new}"
        start, end = self._ends(left)[1], self._ends(right)[0]
        between = re.sub(rb"#[^\n]*", lambda found: b" " * len(found[0]), self.content[start:end])
        match = re.search(pattern.encode(), between)
        assert match is not None, (self.file, between, pattern)
        name = re.sub(r"\\s\+", " ", pattern).replace("\\", "")
        return start + match.start(), start + match.end(), new, f"{name} to {new}"

    def _altered(self, node: ast.Constant) -> Iterator[tuple[int, int, str, str]]:
        value = node.value
        if isinstance(value, bool):
            new = str(not value)
        elif isinstance(value, int):
            new = str(value + 1 if value < 10 else 2 * value)
        elif isinstance(value, float):
            new = repr(value * 2 if value else 1.0)
        else:
            return
        yield (*self._ends(node), new, f"{value!r} to {new}")


def _list_heads(node: ast.stmt) -> list[ast.AST]:
    """Return the expressions before a statement's body; a statement without one as it is."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            defaults = [*node.args.defaults, *node.args.kw_defaults]
            return [default for default in defaults if default is not None]
        case ast.If() | ast.While():
            return [node.test]
        case ast.For() | ast.AsyncFor():
            return [node.iter]
        case ast.With() | ast.AsyncWith():
            return [item.context_expr for item in node.items]
        case ast.Match():
            return [node.subject, *(case.guard for case in node.cases if case.guard)]
        case ast.Try() | ast.ClassDef():
            return []
    return [node]


def _list_bodies(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    """Iterate over the lists of statements in a statement."""
    for _, value in ast.iter_fields(node):
        if isinstance(value, list) and value:
            if isinstance(value[0], ast.stmt):
                yield value
            elif isinstance(value[0], ast.excepthandler | ast.match_case):
                yield from (part.body for part in value)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def _is_type(node: ast.AST) -> bool:
    """Whether an operand of | is a type: None, a built-in type, or a subscripted name."""
    names = {"int", "float", "str", "bool", "bytes", "dict", "list", "tuple", "set"}
    return (isinstance(node, ast.Constant) and node.value is None) or (
        isinstance(node, ast.Name) and node.id in names
    )


def _is_left_alone(node: ast.AST) -> bool:
    """Whether a statement or an expression is not changed, nor anything in it."""
    if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.If):
        return ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING") or (
            "__name__" in ast.unparse(node.test)
        )
    if isinstance(node, ast.Assign):
        return any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)
    if isinstance(node, ast.keyword):
        return node.arg == "strict"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return isinstance(node.func.value, ast.Name) and node.func.value.id in LOGGERS
    return False


def find_sites(package: Path) -> list[Site]:
    """Return all changes of a package's files."""
    sites: list[Site] = []
    for file in sorted(package.rglob("*.py")):
        name = file.relative_to(package).as_posix()
        sites += _File(name, file.read_bytes()).sites()
    return sites


def draw(sites: Iterable[Site], number: int, seed: int) -> list[Site]:
    """Return changes in random order, at most one of a statement."""
    shuffled = sorted(sites, key=lambda site: (site.file, site.key))
    random.Random(seed).shuffle(shuffled)
    chosen: dict[object, Site] = {}
    for site in shuffled:
        chosen.setdefault((site.file, site.key.scope, site.key.statement), site)
        if len(chosen) == number:
            break
    return list(chosen.values())


def find_again(site: tuple[str, Change], sites: dict[Change, list[Site]]) -> Site | None:
    """Return a change of another version in this one: in its file, else where it moved to."""
    file, key = site
    found = sites.get(key, [])
    same = [other for other in found if other.file == file]
    if same or len(found) <= 1:
        return next(iter(same or found), None)
    named = [other for other in found if Path(other.file).name == Path(file).name]
    return named[0] if len(named) == 1 else None
