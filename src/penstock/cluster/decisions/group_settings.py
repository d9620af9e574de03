"""Decisions about group settings: their new values, or why a change is refused. The group need not exist."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.cluster.decisions.settings import SettingsChange, changed
from penstock.cluster.decisions.topics import check_name
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.config.group import GROUP_SETTINGS, group_config
from penstock.errors import ApiError, Code, ConfigError


def alter_group_settings(
    draft: MetadataDraft, group_id: str, change: SettingsChange, max_groups: int
) -> Mapping[str, str]:
    """The new settings of a group; `max_groups` is how many may have some."""
    if not group_id:
        raise ApiError(Code.INVALID_REQUEST, "Default group resources are not allowed.")
    before = draft.group_settings(group_id)
    settings = changed(before, change, GROUP_SETTINGS, {})
    try:
        config = group_config(settings)
        for topic in config.paused_topics:
            check_name(topic)
    except ConfigError as error:
        raise ApiError(Code.INVALID_CONFIG, str(error)) from error
    except ApiError as error:
        raise ApiError(Code.INVALID_CONFIG, str(error)) from error
    if settings and not before and draft.groups_with_settings >= max_groups:
        raise ApiError(Code.POLICY_VIOLATION, f"No more than {max_groups} groups may have settings of their own.")
    return settings
