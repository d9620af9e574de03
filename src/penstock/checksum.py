"""CRC-32C, from the compiled module of the library `crc32c`.

The package around that module also loads a command line and looks up its own version, which together take longer than
any module of a broker. Where the library is laid out differently, the package is loaded as it is.
"""

from __future__ import annotations

from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crc32c import crc32c as crc32c


def _library() -> ModuleType:
    package = PathFinder.find_spec("crc32c")
    compiled = package and PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
    if compiled is None or compiled.loader is None:
        return import_module("crc32c")
    module = module_from_spec(compiled)
    compiled.loader.exec_module(module)
    return module


if not TYPE_CHECKING:
    crc32c = _library().crc32c
