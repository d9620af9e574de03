"""What the pipeline raises on purpose."""

from __future__ import annotations

from penstock.errors import PenstockError


class PipelineError(PenstockError):
    """A job that cannot be done as requested."""


class OptionError(PipelineError):
    """An option that is unknown, contradicts another or cannot be understood."""


class DataLossError(PipelineError):
    """Records that were to be read are no longer there."""


class NotRepeatableError(PipelineError):
    """A task was run again and had other rows than the first time."""
