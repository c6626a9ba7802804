"""Formulas over named outcomes: what they are, and what they are not."""

import ast
import math
import operator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.outcomes import DEEPEST, LONGEST, Formula, check_outcomes


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("click", 1.0),
        ("click + 0.1 * min(purchase, 50) - 2*gone", 4.0),
        ("max(click, purchase) / 4", 22.5),
        ("2 - 1 - 1", 0.0),
        ("8 / 2 / 2", 2.0),
        ("-(click + 1) * -2", 4.0),
        ("- -click", 1.0),
        ("1e2 + 1.5", 101.5),
        ("purchase / gone", 90.0),
        ("purchase / nothing", 0.0),
        ("min(3)", 3.0),
        (" click\n+\t1 ", 2.0),
    ],
)
def test_a_formula_is_worked_out_as_written(text, value):
    assert Formula(text)({"click": 1.0, "purchase": 90.0, "gone": 1.0}) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", f"1 to {LONGEST} characters, got 0"),
        ("1+" * LONGEST, f"1 to {LONGEST} characters"),
        ("click +", "a number, a name or '\\(', got 'its end'"),
        ("click click", "must end before 'click'"),
        ("(click", "must have '\\)', got 'its end'"),
        ("min click", "must have '\\(', got 'click'"),
        ("min(1 2)", "must have ',' or '\\)', got '2'"),
        ("click ** 2", "a number, a name or '\\(', got '\\*'"),
        ("__import__('os')", "numbers, names, .* got \"'os'\\)\""),
        ("click.real", "numbers, names, .* got '.real'"),
        ("0x10", "must end before 'x10'"),
        ("é", "numbers, names"),
        ("click; 1", "numbers, names, .* got '; 1'"),
        ("(" * (DEEPEST + 1), f"nested deeper than {DEEPEST}"),
        ("-" * (DEEPEST + 1), f"nested deeper than {DEEPEST}"),
    ],
)
def test_what_is_no_formula_is_refused(text, rule):
    with pytest.raises(ValueError, match=rule):
        Formula(text)


def parsed(text, values):
    """Return what Python makes of a formula, by its own parser."""
    operators = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}

    def value(node):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            below = value(node.right)
            return value(node.left) / below if below else 0.0
        if isinstance(node, ast.BinOp):
            return operators[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.UnaryOp):
            return -value(node.operand)
        if isinstance(node, ast.Call):
            return {"min": min, "max": max}[node.func.id]([value(one) for one in node.args])
        return values[node.id] if isinstance(node, ast.Name) else float(node.value)

    return value(ast.parse(text, mode="eval").body)


def combined(inner):
    pairs = st.tuples(inner, st.sampled_from(["+", "-", "*", "/"]), inner).map(" ".join)
    return st.one_of(
        pairs,
        inner.map("({})".format),
        inner.map("-{}".format),
        st.tuples(inner, inner).map("min({0[0]}, {0[1]})".format),
    )


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.recursive(st.sampled_from(["a", "b", "2", "0.5", "3e1"]), combined, max_leaves=12),
    st.floats(-9, 9),
    st.floats(-9, 9),
)
def test_it_agrees_with_pythons_own_reading(text, a, b):
    value = Formula(text)({"a": a, "b": b})
    expected = parsed(text, {"a": a, "b": b})
    assert value == expected or math.isnan(expected)


@pytest.mark.parametrize(
    ("windows", "formula", "rule"),
    [
        ({"click": 10}, None, "must come with a formula"),
        ({}, "click", "must come with a formula"),
        ({"click": 601}, "click", "windows in \\(0, wait_time = 600\\], got 601"),
        ({"click": 0}, "click", "windows in"),
        ({"min": 5}, "1", "names of letters"),
        ({"a b": 5}, "1", "names of letters"),
        ({"click": 5}, "clock", "must use the loop's outcomes, got 'clock'"),
    ],
)
def test_outcomes_that_make_no_sense_are_refused(windows, formula, rule):
    with pytest.raises(ValueError, match=rule):
        check_outcomes(windows, formula, 600.0)
