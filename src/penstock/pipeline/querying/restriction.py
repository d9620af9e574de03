"""What a query may do whose author is not trusted with the machine: look at topics, and nothing else.

Spark SQL reads files (``text.`/etc/passwd` ``), runs programs (`TRANSFORM ... USING 'sh'`), calls Java
(`reflect(...)`), writes (`INSERT`, `CREATE`, directories too), changes settings and shows the environment
(`${env:NAME}`).

Rules:
- The query is parsed, not analysed: Spark carries out commands while it analyses them. Every node of the parsed query
  is compared with lists of what is known to be harmless. What is not on them is refused, so a statement that a later
  Spark brings is too.
- Nodes are found in every field of every node, as Scala's case classes tell them: not only where plans keep children.
- A table is one name, which has to be that of a topic; with two parts Spark would take the first for a format of files.
- A function is on the list by its group, or by its name. Those that read the machine, Java or files are in no group
  that is allowed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.pipeline.failure import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.variable.substitute": "false",
    "spark.sql.scripting.enabled": "false",
}
"""Of a session for such queries: a second lock on the same doors."""
MOST_NODES = 2_000
MOST_CHARS = 50_000
MOST_DEPTH = 100
"""Brackets in each other: what takes Spark's parser minutes to read, or more stack than it has."""

_PLANS = frozenset(
    {
        "Aggregate",
        "Distinct",
        "Except",
        "Filter",
        "Generate",
        "GlobalLimit",
        "Intersect",
        "Join",
        "LateralJoin",
        "LimitAll",
        "LocalLimit",
        "LocalRelation",
        "Offset",
        "OneRowRelation",
        "PipeOperator",
        "Pivot",
        "Project",
        "Sample",
        "Sort",
        "SubqueryAlias",
        "Union",
        "UnresolvedHaving",
        "UnresolvedHint",
        "UnresolvedInlineTable",
        "UnresolvedQualify",
        "UnresolvedRelation",
        "UnresolvedSubqueryColumnAliases",
        "UnresolvedTableValuedFunction",
        "UnresolvedTVFAliases",
        "UnresolvedWith",
        "Unpivot",
        "WithWindowDefinition",
    }
)
_REFUSED_EXPRESSIONS = frozenset({"ExpressionWithUnresolvedIdentifier"})
"""Whose name is known only after it is computed."""
_GROUPS = frozenset(
    {
        "agg_funcs",
        "array_funcs",
        "bitwise_funcs",
        "collection_funcs",
        "conditional_funcs",
        "conversion_funcs",
        "csv_funcs",
        "datetime_funcs",
        "generator_funcs",
        "hash_funcs",
        "json_funcs",
        "lambda_funcs",
        "map_funcs",
        "math_funcs",
        "predicate_funcs",
        "string_funcs",
        "struct_funcs",
        "url_funcs",
        "variant_funcs",
        "window_funcs",
    }
)
_TABLE_FUNCTIONS = frozenset({"range", "explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "stack"})
_NAMES = frozenset({"typeof", "uuid", "monotonically_increasing_id"})

_CATALYST = "org.apache.spark.sql.catalyst"
_PLAN = f"{_CATALYST}.plans.logical.LogicalPlan"
_EXPRESSION = f"{_CATALYST}.expressions.Expression"
_RELATION = "UnresolvedRelation"
_FUNCTIONS = frozenset({"UnresolvedFunction", "UnresolvedGenerator", "UnresolvedTableValuedFunction"})


def check(spark: SparkSession, text: str) -> None:
    """PipelineError, which says what is refused, for everything but a query of topics."""
    if len(text) > MOST_CHARS:
        raise PipelineError(f"a restricted query has at most {MOST_CHARS} characters")
    if _depth(text) > MOST_DEPTH:
        raise PipelineError(f"a restricted query has at most {MOST_DEPTH} brackets in each other")
    _Visit(spark).plan(text)


class _Kind(NamedTuple):
    """Facts about a class of Java's. Each costs a call to Java, so we look each up once."""

    name: str
    is_plan: bool
    is_expression: bool
    is_product: bool
    is_iterable: bool


class _Visit:
    """A walk through one parsed query."""

    def __init__(self, spark: SparkSession) -> None:
        gateway, jvm = spark.sparkContext._gateway, spark._jvm
        assert gateway is not None and jvm is not None
        self._gateway = gateway
        self._parser = spark._jsparkSession.sessionState().sqlParser()
        self._registry = jvm.org.apache.spark.sql.catalyst.analysis.FunctionRegistry.builtin()
        self._identifier = jvm.org.apache.spark.sql.catalyst.FunctionIdentifier
        self._kinds: dict[str, _Kind] = {}

    def plan(self, text: str) -> None:
        from py4j.java_gateway import JavaObject
        from py4j.protocol import Py4JError
        from pyspark.errors import ParseException, PySparkException

        try:
            parsed = self._parser.parsePlan(text)
        except ParseException:
            # Spark says what is wrong with the query when it runs it.
            return
        except (Py4JError, PySparkException):
            raise PipelineError("the query cannot be read: it may be nested too deeply") from None
        waiting, seen = [parsed], 0
        while waiting:
            value = waiting.pop()
            # What is no object is a text or a number.
            if isinstance(value, JavaObject):
                seen += 1
                if seen > MOST_NODES:
                    raise _too_long()
                kind = self._kind(value)
                self._look_at(kind, value)
                waiting += _parts(kind, value)

    def _kind(self, value: Any) -> _Kind:
        from py4j.java_gateway import is_instance_of

        name = str(value.getClass().getName())
        if name not in self._kinds:
            asked = (_PLAN, _EXPRESSION, "scala.Product", "scala.collection.Iterable")
            answers = [bool(is_instance_of(self._gateway, value, each)) for each in asked]
            self._kinds[name] = _Kind(name.rpartition(".")[2].rstrip("$"), *answers)
        return self._kinds[name]

    def _look_at(self, kind: _Kind, value: Any) -> None:
        if kind.is_plan:
            if kind.name not in _PLANS:
                raise _refused(f"{_spelled(kind.name)} is no part of a query")
            if kind.name == _RELATION:
                self._table(value)
        elif kind.is_expression and kind.name in _REFUSED_EXPRESSIONS:
            raise _refused("a name has to be written out, not computed")
        if kind.name in _FUNCTIONS:
            self._function(kind.name, value)

    def _table(self, relation: Any) -> None:
        parts = _texts(relation.multipartIdentifier())
        if len(parts) > 1:
            raise _refused(f"{'.'.join(parts)} is no topic; the name of a topic with dots in it is quoted: `a.b`")
        if relation.options().size():
            raise _refused("a table takes no options")

    def _function(self, kind: str, value: Any) -> None:
        if kind == "UnresolvedGenerator":
            written = value.name()
            parts = [str(written.funcName())]
            if written.database().isDefined():
                parts.insert(0, str(written.database().get()))
        else:
            parts = _texts(value.name() if kind == "UnresolvedTableValuedFunction" else value.nameParts())
        name = ".".join(parts)
        lower = name.lower()
        if kind == "UnresolvedTableValuedFunction":
            is_known = lower in _TABLE_FUNCTIONS
        else:
            is_known = lower in _NAMES or self._group(lower) in _GROUPS
        if not is_known:
            raise _refused(f"the function {name} is not on the list of those that may be called")

    def _group(self, name: str) -> str | None:
        found = self._registry.lookupFunction(self._identifier(name))
        return str(found.get().getGroup()) if found.isDefined() else None


def _parts(kind: _Kind, value: Any) -> list[Any]:
    """What a case class or a collection of Scala's holds."""
    if not kind.is_product and not kind.is_iterable:
        return []
    # A list of Scala's is a case class too, of its first and the others.
    found = value.iterator() if kind.is_iterable else value.productIterator()
    parts = []
    while found.hasNext():
        parts.append(found.next())
        if len(parts) > MOST_NODES:
            raise _too_long()
    return parts


def _depth(text: str) -> int:
    """Of brackets, those in texts too."""
    depth = deepest = 0
    for char in text:
        depth = max(0, depth + (char in "([") - (char in ")]"))
        deepest = max(deepest, depth)
    return deepest


def _too_long() -> PipelineError:
    return PipelineError("the query is too long to be checked; make it shorter")


def _texts(names: Any) -> list[str]:
    return [str(names.apply(index)) for index in range(names.size())]


def _refused(what: str) -> PipelineError:
    return PipelineError(f"refused: {what}. A restricted query only reads topics; nothing was done")


def _spelled(name: str) -> str:
    """InsertIntoStatement: insert into statement."""
    return "".join(f" {char.lower()}" if char.isupper() else char for char in name).strip()
