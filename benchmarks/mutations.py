"""Small changes of a Python source that a careless hand could make: the operators of ``benchmarks.mutants``.

Left alone: annotations, docstrings, texts, decorators, bases of classes, what a ``raise`` says, and calls of a log.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

COMPARE: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
PAIRS = (
    ("min", "max"), ("argmin", "argmax"), ("minimum", "maximum"), ("any", "all"), ("floor", "ceil"),
    ("cumsum", "cumprod"), ("sum", "mean"), ("zeros", "ones"), ("zeros_like", "ones_like"), ("head", "encoder"),
    ("startswith", "endswith"), ("sin", "cos"), ("intersection", "union"), ("train", "eval"),
)  # fmt: skip
TWINS = dict(PAIRS) | {after: before for before, after in PAIRS}
"""Names of functions and methods that are taken for one another."""
LOGS = {
    "log", "print", "warn", "warning", "info", "debug", "notice", "set_verbosity", "setLevel", "disable_progress_bar",
}  # fmt: skip
CONVERSIONS = {
    "len", "range", "enumerate", "zip", "items", "values", "keys", "float", "int", "bool", "list", "tuple", "dict",
    "str", "cast", "to", "cpu", "contiguous", "numpy", "tolist", "item", "super", "isinstance", "getattr", "vars",
    "asarray", "ascontiguousarray", "astype", "tobytes",
}  # fmt: skip
"""Calls that stay: without them a line fails at once, or does the same."""
SAME = {"strict", "device", "kind", "slots", "frozen"}
"""Arguments that stay: nothing depends on them, or only on a machine with a GPU."""


@dataclass(frozen=True)
class Mutation:
    """A change at one place of a source."""

    line: int
    """First line of the statement or expression."""
    end: int
    """Its last line."""
    scope: str
    """Class and function that it stands in, with dots; empty at the top of the file."""
    before: str
    """Source of the changed place."""
    after: str
    """Its new source."""
    apply: Callable[[], None] = field(compare=False, repr=False)
    """Changes the tree that the mutation was found in."""


def mutations(tree: ast.Module) -> list[Mutation]:
    """Return all changes of a module, always in the same order."""
    return list(_of_body(tree.body, ""))


def mutated(source: str, number: int) -> ast.Module:
    """Return the tree of a source with its change of that number made."""
    tree = ast.parse(source)
    mutations(tree)[number].apply()
    return ast.fix_missing_locations(tree)


def _of_body(body: list[ast.stmt], scope: str) -> Iterator[Mutation]:
    for at, statement in enumerate(body):
        yield from _of_statement(body, at, statement, scope)


def _of_statement(body: list[ast.stmt], at: int, statement: ast.stmt, scope: str) -> Iterator[Mutation]:
    def replaced(new: ast.stmt) -> Mutation:
        def apply() -> None:
            body[at] = ast.copy_location(new, statement)

        return _mutation(statement, new, scope, apply)

    match statement:
        case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()) | ast.Global() | ast.Nonlocal():
            return
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            inner = f"{scope}.{statement.name}".lstrip(".")
            if not isinstance(statement, ast.ClassDef):
                yield from _of_children(statement.args, inner)
            yield from _of_body(statement.body, inner)
            return
        case ast.Raise():
            yield replaced(ast.Pass())
            return
        case ast.Expr(value=ast.Call() as call):
            if _is_log(call):
                return
            yield replaced(ast.Pass())
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign() | ast.Delete():
            yield replaced(ast.Pass())
        case ast.Return(value=ast.expr() as value) if not _is_none(value):
            yield replaced(ast.Return(ast.Constant(None)))
        case ast.Break():
            yield replaced(ast.Continue())
        case ast.Continue():
            yield replaced(ast.Break())
    if isinstance(statement, ast.AugAssign) and type(statement.op) in ARITHMETIC:
        other = ast.AugAssign(statement.target, ARITHMETIC[type(statement.op)](), statement.value)
        yield replaced(other)
    yield from _of_children(statement, scope)


def _of_children(node: ast.AST, scope: str) -> Iterator[Mutation]:
    """Yield the changes below a node: of its statements, and of its expressions outside annotations."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases", "type_comment", "pattern"):
            continue
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            yield from _of_body(value, scope)
            continue
        for at, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.expr):
                yield from _of_expression(node, name, at, child, scope)
            elif isinstance(child, ast.keyword) and child.arg in SAME:
                continue
            elif isinstance(child, ast.AST) and not isinstance(child, (ast.expr_context, ast.operator, ast.cmpop)):
                yield from _of_children(child, scope)


def _of_expression(parent: ast.AST, name: str, at: int | None, node: ast.expr, scope: str) -> Iterator[Mutation]:
    def replaced(new: ast.expr) -> Mutation:
        def apply() -> None:
            if at is None:
                setattr(parent, name, ast.copy_location(new, node))
            else:
                getattr(parent, name)[at] = ast.copy_location(new, node)

        return _mutation(node, new, scope, apply)

    if isinstance(node, (ast.JoinedStr, ast.Constant)) and not isinstance(getattr(node, "value", None), (int, float)):
        return
    for new in _variants(node):
        yield replaced(new)
    if name == "test" and not isinstance(node, (ast.Compare, ast.UnaryOp)):
        yield replaced(ast.UnaryOp(ast.Not(), node))
    yield from _of_children(node, scope)


def _variants(node: ast.expr) -> Iterator[ast.expr]:
    """Yield what may stand in the place of an expression."""
    match node:
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
            yield ast.Constant(value - 1)
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            for other in COMPARE[type(op)]:
                yield ast.Compare(left, [other()], [right])
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC and not _is_text(left, right):
            yield ast.BinOp(left, ARITHMETIC[type(op)](), right)
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield operand
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            for left_out in range(len(values)):
                rest = [value for i, value in enumerate(values) if i != left_out]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        case ast.IfExp(body=body, orelse=orelse):
            yield body
            yield orelse
        case ast.Subscript(value=value, slice=ast.Slice(lower=lower, upper=upper, step=step), ctx=ast.Load()):
            for bound in (
                ast.Slice(None, upper, step) if lower else None,
                ast.Slice(lower, None, step) if upper else None,
            ):
                if bound is not None:
                    yield ast.Subscript(value, bound, ast.Load())
        case ast.Call():
            yield from _of_call(node)


def _of_call(call: ast.Call) -> Iterator[ast.expr]:
    """Yield a call with another function, without one of its arguments, and its first argument or object alone."""
    if _is_log(call):
        return
    match call.func:
        case ast.Name(id=name) if name in TWINS:
            yield ast.Call(ast.Name(TWINS[name], ast.Load()), call.args, call.keywords)
        case ast.Attribute(value=value, attr=name) if name in TWINS:
            yield ast.Call(ast.Attribute(value, TWINS[name], ast.Load()), call.args, call.keywords)
    name = _called(call)
    for left_out in call.keywords:
        if left_out.arg not in SAME:
            yield ast.Call(call.func, call.args, [keyword for keyword in call.keywords if keyword is not left_out])
    if name in CONVERSIONS:
        return
    if len(call.args) > 1:
        yield ast.Call(call.func, call.args[:-1], call.keywords)
    if isinstance(call.func, ast.Attribute) and not _is_module(call.func.value):
        yield call.func.value
    elif len(call.args) == 1 and not isinstance(call.args[0], (ast.Starred, ast.GeneratorExp)):
        yield call.args[0]


def _is_module(node: ast.expr) -> bool:
    """Return whether a name is that of a module or a class, by how it is written: ``torch``, ``np``, ``F``."""
    names = {"torch", "np", "F", "nn", "pa", "pc", "math", "json", "os", "time", "hashlib", "messages", "statistics"}
    first = node
    while isinstance(first, ast.Attribute):
        first = first.value
    return isinstance(first, ast.Name) and (first.id in names or first.id[:1].isupper())


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_text(*nodes: ast.expr) -> bool:
    """Return whether an operand is a text, a list or a type: another operator would do nothing but fail at once."""
    return any(
        isinstance(node, (ast.JoinedStr, ast.List, ast.ListComp, ast.Tuple, ast.Dict, ast.DictComp))
        or (isinstance(node, ast.Constant) and not isinstance(node.value, (int, float)))
        for node in nodes
    )


def _is_log(call: ast.Call) -> bool:
    return _called(call) in LOGS


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _mutation(old: ast.AST, new: ast.AST, scope: str, apply: Callable[[], None]) -> Mutation:
    line, end = getattr(old, "lineno", 0), getattr(old, "end_lineno", 0)
    return Mutation(line, end, scope, _text(old), _text(new), apply)


def _text(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())
