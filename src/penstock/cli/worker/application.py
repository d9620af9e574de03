"""Finds the client of an application by `MODULE:ATTRIBUTE`.

An error in the application's own code is shown with its traceback, without frames of ours. Everything else that can be
wrong is one line.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import typer

import penstock
from penstock.cli.failure import CommandError
from penstock.sdk.hooks.base import Hooks
from penstock.sdk.receive.subscription import SubscriptionStatus

_OURS = str(Path(penstock.__file__).parent)
_IMPORT_SYSTEM = "<frozen importlib"


class WorkerClient(Protocol):
    """What a worker needs of a client, whatever is behind it. Its methods are coroutine functions in `penstock.aio`."""

    @property
    def address(self) -> str: ...

    @property
    def subscriptions(self) -> tuple[SubscriptionStatus, ...]: ...

    @property
    def hooks(self) -> tuple[Hooks, ...]: ...

    def add_hooks(self, *hooks: Hooks) -> None: ...

    def start(self) -> Any: ...

    def stop(self, grace: float) -> Any: ...

    def close(self, timeout: float) -> Any: ...


_INTERFACE = ("address", "subscriptions", "hooks", "add_hooks", "start", "stop", "close")


def check_target(target: str) -> None:
    """A usage error unless it is `MODULE:ATTRIBUTE`."""
    module, colon, attribute = target.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
        raise typer.BadParameter(f"{target!r} is not MODULE:ATTRIBUTE, such as shop.app:client", param_hint="APP")


def load_client(target: str, folder: Path) -> WorkerClient:
    """Import the application from `folder` or the Python path, and find its client. Raises `CommandError`."""
    module_name, _, path = target.partition(":")
    module = _imported(module_name, folder)
    found: Any = module
    for name in path.split("."):
        if not hasattr(found, name):
            raise CommandError(f"{module_name} has no attribute {path}{_clients_in(module)}; nothing was started")
        found = getattr(found, name)
    if _is_client(found):
        client: WorkerClient = found
        return client
    return _made_by(target, found)


def _imported(name: str, folder: Path) -> ModuleType:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            # Something that the application imports.
            raise _application_error(f"{name} could not be imported", error) from None
        raise CommandError(
            f"there is no module {error.name} in {folder} or on the Python path; nothing was started"
        ) from None
    except (Exception, SystemExit) as error:
        raise _application_error(f"{name} could not be imported", error) from None


def _made_by(target: str, function: Any) -> WorkerClient:
    """The client that a function of the application returns."""
    if isinstance(function, type) or not callable(function):
        raise CommandError(f"{target} is {_described(function)}, {_EXPECTED}; nothing was started")
    if inspect.iscoroutinefunction(function):
        raise CommandError(
            f"{target} is a coroutine function, which the worker does not await: use a function (def) that returns the "
            "client; nothing was started"
        )
    if not _takes_nothing(function):
        raise CommandError(f"{target} takes arguments: use a function without any; nothing was started")
    try:
        made: WorkerClient = function()
    except (Exception, SystemExit) as error:
        raise _application_error(f"{target}() failed", error) from None
    if not _is_client(made):
        raise CommandError(f"{target}() returned {_described(made)}, {_EXPECTED}; nothing was started")
    return made


_EXPECTED = "not a penstock.Client or penstock.aio.Client"


def _is_client(found: object) -> bool:
    return not isinstance(found, type) and all(hasattr(found, name) for name in _INTERFACE)


def _takes_nothing(function: Callable[..., object]) -> bool:
    try:
        inspect.signature(function).bind()
    except TypeError:
        return False
    except ValueError:
        # Some functions written in C have no signature.
        return True
    return True


def _described(found: object) -> str:
    if found is None:
        return "None"
    return f"the class {found.__name__}" if isinstance(found, type) else f"an object of {type(found).__name__}"


def _clients_in(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if _is_client(value)]
    return f" (it has the client {', '.join(names)})" if names else ""


def _application_error(what: str, error: BaseException) -> CommandError:
    """Print the application's traceback, and return what to say below it."""
    shown = traceback.TracebackException.from_exception(error)
    shown.stack = traceback.StackSummary.from_list(_applications_part(shown.stack))
    typer.echo("".join(shown.format()).rstrip(), err=True)
    return CommandError(f"{what}: {type(error).__name__}; nothing was started")


def _applications_part(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """Without our frames and those of the import system, at both ends."""
    frames = [frame for frame in stack if not frame.filename.startswith(_IMPORT_SYSTEM)]
    while frames and _is_ours(frames[0]):
        frames.pop(0)
    # Behind the application's last frame: ours, and generated ones that ours have called, which have no file.
    end = max((number for number, frame in enumerate(frames, 1) if _is_applications(frame)), default=0)
    return frames[:end] if any(map(_is_ours, frames[end:])) else frames


def _is_applications(frame: traceback.FrameSummary) -> bool:
    return not _is_ours(frame) and not frame.filename.startswith("<")


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(_OURS) or frame.filename == importlib.__file__
