"""Decisions about views: which are allowed, and what their bases may no longer do. See `docs/views.md`.

Pure. A view is a topic without partitions of its own whose settings name another topic. `MetadataImage.seen` gives it
that topic's partitions when clients ask.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.cluster.metadata import TopicImage
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.config.view import VIEW_OF_SETTING, VIEW_SETTINGS, VIEW_TAGS_SETTING
from penstock.errors import ApiError, Code
from penstock.ids import TopicId

USE_DEFAULT = -1


def views_of(draft: MetadataDraft, base: str) -> list[str]:
    """The names of the views of a topic."""
    return sorted(name for name, topic in draft.topics.items() if topic.view_of == base)


def new_view(
    draft: MetadataDraft,
    name: str,
    topic_id: TopicId,
    overrides: Mapping[str, str],
    *,
    partitions: int,
    replication_factor: int,
    has_assignments: bool,
    views_per_topic: int,
) -> TopicImage:
    """The view to be created; the rest of the request may say nothing that its base does not say."""
    base_name = overrides.get(VIEW_OF_SETTING, "")
    base = draft.topics.get(base_name)
    if not base_name or base is None:
        raise _refused(VIEW_OF_SETTING, f"there is no topic '{base_name}' to show records of")
    if base.view_of is not None:
        raise _refused(VIEW_OF_SETTING, f"{base_name} is a view itself, of {base.view_of}; make a view of that one")
    if base.is_internal:
        raise _refused(VIEW_OF_SETTING, f"{base_name} is an internal topic")
    _check_settings(overrides, base_name)
    if has_assignments:
        raise ApiError(Code.INVALID_REPLICA_ASSIGNMENT, f"A view is where its base is: {base_name} has the replicas.")
    if partitions not in (USE_DEFAULT, len(base.partitions)):
        raise ApiError(
            Code.INVALID_PARTITIONS,
            f"A view has the partitions of its base: ask for -1, or for the {len(base.partitions)} of {base_name}.",
        )
    if replication_factor not in (USE_DEFAULT, base.replication_factor):
        raise ApiError(
            Code.INVALID_REPLICATION_FACTOR,
            f"A view has the replicas of its base: ask for -1, or for the {base.replication_factor} of {base_name}.",
        )
    if len(views_of(draft, base_name)) >= views_per_topic:
        raise ApiError(
            Code.POLICY_VIOLATION,
            f"Topic '{base_name}' has {views_per_topic} views, and limits.views_per_topic allows no more.",
        )
    return TopicImage(name, topic_id, (), overrides)


def check_change(topic: TopicImage, overrides: Mapping[str, str]) -> None:
    """Refuses new overrides that make a view of a topic that is none, or anything else of one that is."""
    before, after = topic.view_of, overrides.get(VIEW_OF_SETTING)
    if before != after:
        raise _refused(VIEW_OF_SETTING, "it is set when a view is created, and cannot be changed")
    if before is not None:
        _check_settings(overrides, before)
    elif VIEW_TAGS_SETTING in overrides:
        raise _refused(VIEW_TAGS_SETTING, f"{topic.name} is no view")


def check_deletion(draft: MetadataDraft, topic: TopicImage) -> None:
    """Refuses to delete what views look at."""
    if views := views_of(draft, topic.name):
        raise ApiError(
            Code.POLICY_VIOLATION,
            f"Topic '{topic.name}' has views ({', '.join(views)}); delete them first, or with it.",
        )


def check_growth(topic: TopicImage) -> None:
    """Refuses partitions that only the base can have."""
    if topic.view_of is not None:
        raise ApiError(
            Code.INVALID_PARTITIONS,
            f"Topic '{topic.name}' is a view of {topic.view_of} and has its partitions: add them there.",
        )


def check_no_view(overrides: Mapping[str, str]) -> None:
    """Refuses what only a view can have, in a topic that is none."""
    if VIEW_TAGS_SETTING in overrides:
        raise _refused(VIEW_TAGS_SETTING, f"without {VIEW_OF_SETTING} it means nothing")


def _check_settings(overrides: Mapping[str, str], base: str) -> None:
    if not overrides.get(VIEW_TAGS_SETTING, "").strip():
        raise _refused(VIEW_TAGS_SETTING, "a view has to say which tags it shows, such as checkout,refund")
    if others := sorted(overrides.keys() - VIEW_SETTINGS):
        raise _refused(others[0], f"a view has no log of its own: this is a setting of its base, {base}")


def _refused(setting: str, reason: str) -> ApiError:
    return ApiError(Code.INVALID_CONFIG, f"{setting}: {reason}")
