"""Where a module can be changed into a mutant: one small exchange of its text at a time."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

_COMPARE: Final[dict[type[ast.cmpop], tuple[str, ...]]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_BINARY: Final[dict[type[ast.operator], tuple[str, str]]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
_SWAPPED: Final[dict[str, str]] = {
    **{a: b for pair in (
        ("min", "max"),
        ("minimum", "maximum"),
        ("min_horizontal", "max_horizontal"),
        ("any", "all"),
        ("argmin", "argmax"),
        ("first", "last"),
        ("is_null", "is_not_null"),
        ("zeros", "ones"),
        ("start", "end"),
        ("cum_min", "cum_max"),
        ("forward_fill", "backward_fill"),
        ("low", "high"),
    ) for a, b in (pair, pair[::-1])},
    "sum": "max",
    "mean": "max",
    "median": "max",
    "unique": "sort",
}  # fmt: skip
"""Names of functions, methods and members, and what stands in their place."""
_WORDS: Final[dict[str, str]] = {"left": "right", "right": "left", "inner": "left", "stable": "quicksort"}
"""Texts that choose what a function does."""


@dataclass(frozen=True)
class Mutant:
    """One change.

    Attributes:
        module: dotted name.
        line: of the change, from 1.
        column: of the change, in characters from 0.
        was: text that is taken out.
        now: text that takes its place.
        start: offset of ``was`` in the source, in characters.
        lines: first and last line of the statement that it stands in (of a compound one, its head).
    """

    module: str
    line: int
    column: int
    was: str
    now: str
    start: int
    lines: tuple[int, int]

    def of(self, source: str) -> str:
        """The module with this change."""
        return source[: self.start] + self.now + source[self.start + len(self.was) :]


def mutants(module: str, source: str) -> list[Mutant]:
    """Every mutant of a module, in the order of its text.

    Left alone: texts and numbers in docstrings, annotations, messages of errors and formatted strings.
    """
    offsets = [0]
    for text in source.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(text))
    rows = source.splitlines()

    def offset(line: int, column: int) -> int:
        return offsets[line - 1] + len(rows[line - 1].encode()[:column].decode())

    found = []
    for node, statement in _walk(ast.parse(source), None):
        for begin, end, now in _changes(node, source, offset):
            line = source.count("\n", 0, begin) + 1
            found.append(
                Mutant(module, line, begin - offsets[line - 1], source[begin:end], now, begin, _span(statement, line))
            )
    return sorted(set(found), key=lambda m: (m.start, m.now))


def _span(statement: ast.stmt | None, line: int) -> tuple[int, int]:
    if statement is None:
        return line, line
    body = getattr(statement, "body", None)
    last = body[0].lineno - 1 if isinstance(body, list) and body else statement.end_lineno
    return statement.lineno, max(statement.lineno, last or line)


def _walk(node: ast.AST, statement: ast.stmt | None) -> Iterator[tuple[ast.AST, ast.stmt | None]]:
    if isinstance(node, (ast.JoinedStr, ast.Raise, ast.Assert)):
        return
    if isinstance(node, ast.stmt):
        statement = node
    yield node, statement
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        children = value if isinstance(value, list) else [value]
        for at, child in enumerate(children):
            if not isinstance(child, ast.AST):
                continue
            documentation = ((name == "body" and at == 0) or isinstance(child, ast.Expr)) and isinstance(
                getattr(child, "value", None), ast.Constant
            )
            if not documentation:
                yield from _walk(child, statement)


def _changes(node: ast.AST, source: str, offset: Callable[[int, int], int]) -> Iterator[tuple[int, int, str]]:
    def begin(part: ast.expr | ast.stmt) -> int:
        return offset(part.lineno, part.col_offset)

    def end(part: ast.expr | ast.stmt) -> int:
        return offset(part.end_lineno or 0, part.end_col_offset or 0)

    def between(left: ast.expr, right: ast.expr, was: str, now: str) -> Iterator[tuple[int, int, str]]:
        at = _operator(source, end(left), begin(right), was)
        if at >= 0:
            yield at, at + len(was), now

    match node:
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            for op, one, other in zip(ops, [left, *comparators], comparators, strict=False):
                was, *others = _COMPARE[type(op)]
                for now in others:
                    yield from between(one, other, was, now)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            yield from between(left, right, *_BINARY[type(op)])
        case ast.BoolOp(op=op, values=values):
            was, now = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
            for one, other in zip(values, values[1:], strict=False):
                yield from between(one, other, was, now)
        case ast.UnaryOp(op=ast.Not()):
            yield begin(node), begin(node) + len("not"), ""
        case ast.UnaryOp(op=ast.Invert()):
            yield begin(node), begin(node) + 1, ""
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
            yield begin(node), begin(node) + 1, ""
        case ast.Constant(value=bool(value)):
            yield begin(node), end(node), str(not value)
        case ast.Constant(value=int(value)):
            yield begin(node), end(node), str(value + 1)
        case ast.Constant(value=float(value)):
            yield begin(node), end(node), str(value + 1.0)
        case ast.Constant(value=str(value)) if value in _WORDS:
            yield begin(node), end(node), f'"{_WORDS[value]}"'
        case ast.Attribute(attr=name) if name in _SWAPPED:
            yield end(node) - len(name), end(node), _SWAPPED[name]
        case ast.Call(func=ast.Name(id=name) as function) if name in _SWAPPED:
            yield begin(function), end(function), _SWAPPED[name]
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            text = source[begin(test) : end(test)]
            yield begin(test), end(test), f"(not ({text}))"
        case ast.AugAssign(target=target, op=op, value=value) if type(op) in _BINARY:
            was, now = _BINARY[type(op)]
            yield from between(target, value, f"{was}=", f"{now}=")
        case ast.Expr(value=ast.Call()):
            yield begin(node), end(node), "pass"
        case ast.Continue():
            yield begin(node), end(node), "break"
        case ast.Break():
            yield begin(node), end(node), "continue"
        case _:
            return


def _operator(source: str, begin: int, end: int, was: str) -> int:
    """Where the operator stands between two operands, past brackets and comments; -1 where it isn't found."""
    at = begin
    while at < end:
        if source[at] == "#":
            at = source.index("\n", at)
        elif source.startswith(was, at):
            return at
        at += 1
    return -1
