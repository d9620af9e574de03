"""One step of a member towards its target assignment (KIP-848).

A partition is revoked first, and assigned once no other member has it. `docs/internals/groups.md` draws the states.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.groups.consumer.assignment import Assignment
from penstock.groups.consumer.members import Current, MemberState


def reconcile(
    current: Current,
    target_epoch: int,
    target: Assignment,
    owned: Assignment | None,
    free_of: Callable[[Assignment], Assignment],
) -> Current:
    """Where the member stands next.

    `owned` is what it says it has, None if it does not say. `free_of` says which partitions no member owns.
    """
    if current.has_reached(target_epoch):
        return current
    epoch = current.epoch
    if current.state is MemberState.UNREVOKED_PARTITIONS:
        if _still_has(owned, current.revoking):
            return current
        epoch += 1
    kept = current.assigned & target
    revoking = current.assigned - target
    if revoking and _still_has(owned, revoking):
        return current.moved(epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    assigned = kept | free_of(target - kept)
    is_complete = len(assigned) == len(target)
    state = MemberState.STABLE if is_complete else MemberState.UNRELEASED_PARTITIONS
    return current.moved(target_epoch, state, assigned)


def _still_has(owned: Assignment | None, revoking: Assignment) -> bool:
    """A member that does not say what it has is taken to have it still."""
    return owned is None or not owned.isdisjoint(revoking)
