"""The users that can log in with a password: those of the cluster's metadata, and those of this broker's files.

A user of a file takes precedence over one of the same name in the metadata: the brokers' own user has to be valid
before there is a cluster.

A user that does not exist has a credential too, which fits no password. Its salt follows from its name and a secret of
the cluster, so it is the same at each try and on each broker; salt and iterations look like those of most users. So
names cannot be probed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from hashlib import shake_256

from penstock.security.scram import DEFAULT_ITERATIONS, ScramCredential, ScramMechanism

Credentials = Mapping[ScramMechanism, ScramCredential]
"""Of one user."""
UserCredentials = Mapping[str, Credentials]
"""By user."""

_SALT_BYTES = 32


class UserDirectory:
    """Finds credentials."""

    def __init__(
        self,
        stored: Callable[[], UserCredentials],
        secret: Callable[[], bytes],
        own: UserCredentials | None = None,
    ) -> None:
        """`stored` gives the users of the metadata, `own` has those of files."""
        self._stored = stored
        self._secret = secret
        self.own: UserCredentials = own or {}
        self._shapes_of: UserCredentials = {}
        self._shapes: dict[ScramMechanism, tuple[int, int]] = {}

    def of_mechanism(self, user: str, mechanism: ScramMechanism) -> ScramCredential:
        """The user's credential for this mechanism; one that fits no password if there is none."""
        return self._credentials(user).get(mechanism) or self.invented(user, mechanism)

    def of_any(self, user: str) -> tuple[ScramMechanism, ScramCredential]:
        """The same for whichever mechanism the user has a credential for."""
        found = self._credentials(user)
        for mechanism in (ScramMechanism.SHA_512, ScramMechanism.SHA_256):
            if mechanism in found:
                return mechanism, found[mechanism]
        return ScramMechanism.SHA_512, self.invented(user, ScramMechanism.SHA_512)

    def has(self, user: str) -> bool:
        return user in self.own or user in self._stored()

    def _credentials(self, user: str) -> Credentials:
        return self.own.get(user) or self._stored().get(user) or {}

    def invented(self, user: str, mechanism: ScramMechanism) -> ScramCredential:
        """The credential of a user that does not exist."""
        salt_bytes, iterations = self._usual_shape(mechanism)
        size = mechanism.hash_bytes
        seed = b"\0".join((self._secret(), mechanism.value.encode(), user.encode()))
        made = shake_256(seed).digest(size * 2 + salt_bytes)
        return ScramCredential(made[2 * size :], iterations, made[:size], made[size : 2 * size])

    def _usual_shape(self, mechanism: ScramMechanism) -> tuple[int, int]:
        """Bytes of salt and iterations that most users have."""
        stored = self._stored()
        if self._shapes_of is not stored:
            self._shapes_of = stored
            self._shapes.clear()
        shape = self._shapes.get(mechanism)
        if shape is None:
            found = (credentials.get(mechanism) for credentials in (*stored.values(), *self.own.values()))
            counts = Counter((len(each.salt), each.iterations) for each in found if each is not None)
            shape = min(counts, key=lambda each: (-counts[each], each), default=(_SALT_BYTES, DEFAULT_ITERATIONS))
            self._shapes[mechanism] = shape
        return shape
