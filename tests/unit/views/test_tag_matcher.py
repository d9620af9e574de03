"""Verdicts on many records agree with a look at each of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.config.view import AllOf, AnyOf, Expression, Not, Tag, parse_tags
from penstock.storage.tags import NO_RECORDS, UNTAGGED, TagSummary
from penstock.views.tag_matcher import Matcher, Verdict

NAMES = ("a", "b", "c", "d")
expressions = st.recursive(
    st.sampled_from(NAMES).map(Tag),
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(lambda items: AllOf(tuple(items)), st.lists(inner, min_size=2, max_size=3)),
        st.builds(lambda items: AnyOf(tuple(items)), st.lists(inner, min_size=2, max_size=3)),
    ),
    max_leaves=8,
)
tag_sets = st.frozensets(st.sampled_from(NAMES).map(str.encode))


def is_true(expression: Expression, tags: frozenset[bytes]) -> bool:
    """The model: what the expression says of one record."""
    match expression:
        case Tag(name):
            return name.encode() in tags
        case Not(operand):
            return not is_true(operand, tags)
        case AllOf(operands):
            return all(is_true(operand, tags) for operand in operands)
        case AnyOf(operands):
            return any(is_true(operand, tags) for operand in operands)


@given(expressions, tag_sets)
def test_a_record_matches_if_the_expression_is_true_of_it(expression: Expression, tags: frozenset[bytes]) -> None:
    matcher = Matcher(expression)
    assert matcher.matches(tags) == is_true(expression, tags)
    assert matcher.matches(tags) == is_true(expression, tags)  # from memory


@given(expressions, st.lists(tag_sets, min_size=1, max_size=5), tag_sets)
def test_the_verdict_on_many_is_never_wrong(
    expression: Expression, records: list[frozenset[bytes]], never_there: frozenset[bytes]
) -> None:
    matches = [is_true(expression, tags) for tags in records]
    verdict = Matcher(expression).verdict(TagSummary(never_there.union(*records), is_alike=False))
    assert verdict is not Verdict.ALL or all(matches)
    assert verdict is not Verdict.NONE or not any(matches)


@given(expressions, tag_sets)
def test_of_records_that_are_alike_it_is_known(expression: Expression, tags: frozenset[bytes]) -> None:
    verdict = Matcher(expression).verdict(TagSummary(tags, is_alike=True))
    assert verdict is (Verdict.ALL if is_true(expression, tags) else Verdict.NONE)


@given(expressions, tag_sets)
def test_what_has_none_of_the_needed_tags_does_not_match(expression: Expression, tags: frozenset[bytes]) -> None:
    needed = Matcher(expression).needs_one_of
    if needed is not None and needed.isdisjoint(tags):
        assert not is_true(expression, tags)


def test_where_there_are_no_records_none_match() -> None:
    assert Matcher(parse_tags("not a")).verdict(NO_RECORDS) is Verdict.NONE
    assert Matcher(parse_tags("not a")).verdict(UNTAGGED) is Verdict.ALL
