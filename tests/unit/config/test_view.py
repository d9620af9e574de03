"""What the expression of a view means, and what it may not be."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.topic import topic_config
from penstock.config.view import MAX_LENGTH, AllOf, AnyOf, Expression, Not, Tag, parse_tags
from penstock.errors import ConfigError

A, B, C = Tag("a"), Tag("b"), Tag("c")


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("a", A),
        (" a , b,c ", AnyOf((A, B, C))),
        ("a or b, c", AnyOf((A, B, C))),
        ("a and b or c", AnyOf((AllOf((A, B)), C))),
        ("a or b and c", AnyOf((A, AllOf((B, C))))),
        ("a and (b or c)", AllOf((A, AnyOf((B, C))))),
        ("not a and b", AllOf((Not(A), B))),
        ("not (a and b)", Not(AllOf((A, B)))),
        ("NOT a AND b Or c", AnyOf((AllOf((Not(A), B)), C))),
        ("not not a", Not(Not(A))),
        ('"and" or "a b" or "("', AnyOf((Tag("and"), Tag("a b"), Tag("(")))),
        ("android,notes,oracle", AnyOf((Tag("android"), Tag("notes"), Tag("oracle")))),
        ("region:eu/west.1-x", Tag("region:eu/west.1-x")),
        ("größe", Tag("größe")),
    ],
)
def test_an_expression_means_what_it_says(text: str, meaning: Expression) -> None:
    assert parse_tags(text) == meaning


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a tag at the end"),
        ("a and", "a tag at the end"),
        ("a b", "'b' at character 3"),
        ("a,,b", "',' at character 3"),
        ("(a", "the '(' at character 1"),
        ("a)", "')' at character 2"),
        ('a or "b', "character 6"),
        ('""', "no empty tag"),
        ('"a,b"', "no empty tag and none with a comma"),
        ("not" * 1 + " (" * 60 + "a" + ")" * 60, "at most 50"),
        ("a" * (MAX_LENGTH + 1), f"at most {MAX_LENGTH} characters"),
    ],
)
def test_what_means_nothing_is_refused_with_the_place(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        parse_tags(text)


def test_a_topic_setting_that_means_nothing_is_named() -> None:
    with pytest.raises(ConfigError, match=r"penstock\.view\.tags = 'a and': allowed is a tag at the end"):
        topic_config({"penstock.view.tags": "a and"})


def test_views_are_no_default_of_all_topics() -> None:
    with pytest.raises(ConfigError, match="for one topic"):
        topic_config({}, {"penstock.view.of": "orders"})


names = st.text(st.characters(categories=("L", "N")), min_size=1, max_size=6)
expressions = st.recursive(
    st.builds(Tag, names),
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(lambda items: AllOf(tuple(items)), st.lists(inner, min_size=2, max_size=3)),
        st.builds(lambda items: AnyOf(tuple(items)), st.lists(inner, min_size=2, max_size=3)),
    ),
    max_leaves=12,
)


def written(expression: Expression) -> str:
    match expression:
        case Tag(name):
            return f'"{name}"'
        case Not(operand):
            return f"not ({written(operand)})"
        case AllOf(operands):
            return " and ".join(f"({written(operand)})" for operand in operands)
        case AnyOf(operands):
            return " or ".join(f"({written(operand)})" for operand in operands)


@given(expressions)
def test_every_expression_can_be_written_and_read_again(expression: Expression) -> None:
    assert parse_tags(written(expression)) == expression


@given(st.text(max_size=40))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    try:
        assert parse_tags(text)
    except ValueError as refusal:
        assert str(refusal)
