"""What a handler takes, read from its annotations when it is registered: messages, decoded payloads, or both. Pure.

A parameter that is annotated with a dataclass or a pydantic model gets the decoded payload. One that is annotated with
`Message`, or not at all, gets the message. With `batch` both are lists. A handler that works in something, such as a
transaction of a database, has a parameter for that *context* too: the one that is annotated with its type, else the
last one.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ForwardRef, Literal, Union, get_args, get_origin

from penstock.sdk.errors import InvalidInputError
from penstock.sdk.message import Message
from penstock.sdk.payloads.decoders import PayloadType, payload_type
from penstock.sdk.problem_log import error_line

_LISTS = (list, Sequence, Collection, Iterable)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class HandlerParameter:
    """A parameter that the SDK passes."""

    takes: Literal["message", "payload", "context"]
    keyword: str | None = None
    """Its name, if it has to be passed by name."""


@dataclass(frozen=True, slots=True)
class HandlerSignature:
    """What a handler is called with."""

    parameters: tuple[HandlerParameter, ...] = (HandlerParameter("message"),)
    payload: PayloadType | None = None
    """What messages are decoded to; None if the handler takes messages only."""


MESSAGE_ONLY = HandlerSignature()
_MESSAGE_AND_CONTEXT = HandlerSignature((HandlerParameter("message"), HandlerParameter("context")))


def signature_of(
    handler: Callable[..., Any], *, is_batch: bool, context: type[object] | None = None
) -> HandlerSignature:
    """Read the signature of a handler; `context` is the type of what it works in, if there is such a thing.

    Raises:
        InvalidInputError: The SDK cannot call it, or messages cannot be decoded to what it is annotated with.
    """
    try:
        signature = _inspected(handler)
    except (TypeError, ValueError):
        # Some functions written in C have no signature.
        return MESSAGE_ONLY if context is None else _MESSAGE_AND_CONTEXT
    name = f"{getattr(handler, '__qualname__', None) or repr(handler)}{signature}"
    annotations = _Annotations(handler, name, is_batch)
    parameters = list(signature.parameters.values())
    for_context = None if context is None else _context_parameter(parameters, annotations, context)
    if context is not None and for_context is None:
        raise _not_a_handler(name, context)
    passed = _passed([each for each in parameters if each is not for_context], annotations)
    if passed is None:
        raise _not_a_handler(name, context)
    payloads = {each.name: annotations.payload_of(each) for each in passed}
    if len(passed) == 2 and sum(kind is None for kind in payloads.values()) != 1:
        raise _not_a_handler(name, context)
    in_order = [each for each in parameters if each is for_context or each in passed]

    def takes(parameter: inspect.Parameter) -> Literal["message", "payload", "context"]:
        if parameter is for_context:
            return "context"
        return "message" if payloads[parameter.name] is None else "payload"

    return HandlerSignature(
        tuple(
            HandlerParameter(takes(each), keyword)
            for each, keyword in zip(in_order, _keywords(signature, in_order), strict=True)
        ),
        next((kind for kind in payloads.values() if kind is not None), None),
    )


def _context_parameter(
    parameters: Sequence[inspect.Parameter], annotations: _Annotations, context: type[object]
) -> inspect.Parameter | None:
    """The parameter that is annotated with the context; without one, the last of several without annotation."""
    for each in parameters:
        if annotations.is_a(each, context):
            return each
    required = [each for each in parameters if each.kind not in _VARIABLE and each.default is inspect.Parameter.empty]
    is_last = len(required) > 1 and required[-1].annotation is inspect.Parameter.empty
    return required[-1] if is_last else None


def _passed(parameters: Sequence[inspect.Parameter], annotations: _Annotations) -> list[inspect.Parameter] | None:
    """The one or two parameters that the SDK passes; None if the handler cannot be called that way."""
    if not parameters or parameters[0].kind not in (*_POSITIONAL, inspect.Parameter.VAR_POSITIONAL):
        return None
    first, rest = parameters[0], [each for each in parameters[1:] if each.kind not in _VARIABLE]
    required = [each for each in rest if each.default is inspect.Parameter.empty]
    if len(required) > 1:
        return None
    wanted = required or [each for each in rest if annotations.asks_for_message(each)][:1]
    return [first, *wanted]


def _keywords(signature: inspect.Signature, passed: Sequence[inspect.Parameter]) -> list[str | None]:
    """The names of parameters that are passed by name: those that do not stand at the place of their argument."""
    in_order = [name for name, each in signature.parameters.items() if each.kind in _POSITIONAL]
    return [
        None if number == 0 or in_order[number : number + 1] == [each.name] else each.name
        for number, each in enumerate(passed)
    ]


def _not_a_handler(name: str, context: type[object] | None) -> InvalidInputError:
    if context is not None:
        return InvalidInputError(
            f"{name} cannot be a handler: it must take the message, or what it is decoded to, or both, and a "
            f"{context.__name__}, such as f(message: penstock.Message, transaction: {context.__name__})"
        )
    return InvalidInputError(
        f"{name} cannot be a handler: it must take one argument, the message (with batch: the list of messages) or "
        "what it is decoded to; or both, such as f(order: Order, message: penstock.Message)"
    )


class _Annotations:
    """The annotations of one handler."""

    def __init__(self, handler: Callable[..., Any], name: str, is_batch: bool) -> None:
        self._globals = getattr(_function_of(handler), "__globals__", {})
        self._name = name
        self._is_batch = is_batch

    def asks_for_message(self, parameter: inspect.Parameter) -> bool:
        """Whether a parameter with a default is annotated with the message."""
        annotation = parameter.annotation
        if annotation is inspect.Parameter.empty:
            return False
        try:
            return _mentions_message(self._resolved(annotation))
        except Exception:
            return _is_text_of(annotation, Message)

    def is_a(self, parameter: inspect.Parameter, kind: type[object]) -> bool:
        """Whether a parameter is annotated with a class."""
        annotation = parameter.annotation
        if annotation is inspect.Parameter.empty:
            return False
        try:
            return self._resolved(annotation) is kind
        except Exception:
            return _is_text_of(annotation, kind)

    def payload_of(self, parameter: inspect.Parameter) -> PayloadType | None:
        """What to decode to; None if the parameter takes the message. Raises `InvalidInputError`."""
        annotation = parameter.annotation
        if annotation is inspect.Parameter.empty:
            return None
        try:
            annotation = self._resolved(annotation)
        except Exception as error:
            if _is_text_of(annotation, Message):
                return None
            raise InvalidInputError(
                f"{self._name} cannot be a handler: the annotation of {parameter.name} cannot be read: "
                f"{error_line(error)}; define the type in the module, or import it when the program runs"
            ) from None
        if annotation in (Any, object, list) or _mentions_message(annotation):
            return None
        is_list = get_origin(annotation) in _LISTS
        if is_list != self._is_batch:
            hint = (
                f"with batch, {parameter.name} is a list: write list[...]"
                if self._is_batch
                else f"{parameter.name} is a list only with batch=..."
                if is_list and _is_payload(get_args(annotation)[0])
                else None
            )
            if hint is not None:
                raise InvalidInputError(f"{self._name} cannot be a handler: {hint}")
        elif is_list:
            (annotation,) = get_args(annotation)
            if annotation is Any or annotation is object:
                return None
        try:
            return payload_type(annotation)
        except InvalidInputError as error:
            raise InvalidInputError(
                f"{self._name} cannot be a handler: {parameter.name}: {error}; annotate it with penstock.Message to "
                "get the message"
            ) from None

    def _resolved(self, annotation: Any) -> Any:
        def holder() -> None: ...

        # Only this annotation: others, such as that of the result, may name what only type checkers import.
        holder.__annotations__ = {"it": annotation}
        return typing.get_type_hints(holder, globalns=self._globals)["it"]


def _mentions_message(annotation: Any) -> bool:
    """Whether it is `Message`, a list of them, or a union with one."""
    if isinstance(annotation, type) and not get_args(annotation):
        return issubclass(annotation, Message)
    return get_origin(annotation) in (*_LISTS, Union, types.UnionType) and any(
        map(_mentions_message, get_args(annotation))
    )


def _is_payload(kind: Any) -> bool:
    try:
        payload_type(kind)
    except InvalidInputError:
        return False
    return True


def _is_text_of(annotation: Any, kind: type[object]) -> bool:
    """Whether an annotation that cannot be evaluated, because only type checkers import it, is that of a class."""
    text = annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else annotation
    return isinstance(text, str) and text.rpartition(".")[2].rstrip("]") == kind.__name__


def _inspected(handler: Callable[..., Any]) -> inspect.Signature:
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(handler, annotation_format=Format.FORWARDREF)
    return inspect.signature(handler)


def _function_of(handler: Any) -> Any:
    """The function whose module knows the names in the annotations."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if isinstance(handler, type):
        handler = handler.__init__  # type: ignore[misc]
    elif not inspect.isroutine(handler):
        handler = type(handler).__call__
    return inspect.unwrap(handler)
