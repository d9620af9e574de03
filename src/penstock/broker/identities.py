"""The users that can log in to this broker, and how: assembled from the settings, the files that they name, and the
metadata.

The brokers' own user comes from a file, so that brokers can talk to each other before there are users in the metadata.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.clock import Clock
from penstock.cluster.decisions.users import UserChange
from penstock.cluster.metadata_changes import MetadataChanges
from penstock.config.broker import Config
from penstock.config.security import OAUTHBEARER, PLAIN, SecuritySettings
from penstock.errors import ConfigError, PeerError
from penstock.logs import fields
from penstock.net.login import Logins
from penstock.net.peer import PeerLogin
from penstock.security.exchange import ClientExchange, Exchange
from penstock.security.oauth import BearerServer
from penstock.security.plain import PlainClient, PlainServer
from penstock.security.scram import ScramClient, ScramMechanism, ScramServer, new_credential
from penstock.security.users import Credentials, UserCredentials, UserDirectory

if TYPE_CHECKING:
    from penstock.broker.background.token_keys import TokenKeys

logger = logging.getLogger(__name__)

MAX_FILE_USERS = 1000
"""Each costs some milliseconds when the file is read."""


class Identities:
    """The users that this broker knows, and the logins that it takes."""

    def __init__(self, config: Config, metadata: MetadataChanges, clock: Clock) -> None:
        self._settings = config.security
        self._directory = UserDirectory(lambda: metadata.image.users, lambda: metadata.image.login_secret)
        self._reading: asyncio.Task[None] | None = None
        self._has_to_read = False
        mechanisms: dict[str, Callable[[], Exchange]] = {PLAIN: lambda: PlainServer(self._directory.of_any)}
        for scram in ScramMechanism:
            mechanisms[scram.value] = partial(_new_scram_server, self._directory, scram)
        self._token_keys: TokenKeys | None = None
        if any(OAUTHBEARER in self._settings.mechanisms_of(each.protocol) for each in config.listeners()):
            from penstock.broker.background.token_keys import TokenKeys

            keys = self._token_keys = TokenKeys(self._settings)
            mechanisms[OAUTHBEARER] = lambda: BearerServer(lambda token: keys.read(token, clock.now_ms() / 1000))
        self.logins = Logins(
            config.security, config.limits, mechanisms, self._directory.has, lambda: clock.now_ms() / 1000
        )

    async def start(self) -> None:
        """Reads the files; ConfigError if that cannot be done."""
        if self._token_keys is not None:
            await self._token_keys.start()
        await self._read_users()

    async def _read_users(self) -> None:
        self._directory.own = await asyncio.to_thread(self._read_own)

    async def close(self) -> None:
        if self._token_keys is not None:
            await self._token_keys.close()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        self.logins.close()

    def reload(self) -> None:
        """Reads the files again; if that cannot be done, what is known stays."""
        if self._token_keys is not None:
            self._token_keys.reload()
        # What is being read may be from before the change.
        self._has_to_read = True
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._reload(), name="penstock-users-file")

    async def _reload(self) -> None:
        while self._has_to_read:
            self._has_to_read = False
            try:
                await self._read_users()
            except ConfigError as error:
                logger.error("users cannot be read again; the old ones stay in use", extra=fields(reason=str(error)))
            else:
                logger.info("users were read again", extra=fields(users=len(self._directory.own)))

    def _read_own(self) -> UserCredentials:
        settings = self._settings
        passwords: dict[str, str] = {}
        if settings.users_file is not None:
            passwords |= read_users_file(settings.users_file)
        if settings.inter_broker_user is not None and settings.inter_broker_password_file is not None:
            passwords[settings.inter_broker_user] = settings.inter_broker_password().reveal()
        return {user: self._credentials(user, password) for user, password in passwords.items()}

    def _credentials(self, user: str, password: str) -> Credentials:
        """With the salt that the user would have if it did not exist: the same on all brokers, and after a restart."""
        made = {}
        for mechanism in ScramMechanism:
            like = self._directory.invented(user, mechanism)
            made[mechanism] = new_credential(mechanism, password, salt=like.salt, iterations=like.iterations)
        return made


def _new_scram_server(directory: UserDirectory, mechanism: ScramMechanism) -> Exchange:
    return ScramServer(mechanism, lambda user: directory.of_mechanism(user, mechanism))


def read_users_file(file: Path) -> dict[str, str]:
    """Passwords by user; ConfigError if the file is malformed."""
    key = f"security.users_file = '{file}'"
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{key}: cannot be read: {error}") from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, _, password = line.partition(":")
        if not user or not password:
            raise ConfigError(f"{key}: line {number} is not USER:PASSWORD")
        if user in found:
            raise ConfigError(f"{key}: line {number} has the user {user} for the second time")
        found[user] = password
    if len(found) > MAX_FILE_USERS:
        raise ConfigError(f"{key}: has {len(found)} users, {MAX_FILE_USERS} are allowed; use `penstock user add`")
    return found


async def add_first_admin(metadata: MetadataChanges, settings: SecuritySettings) -> None:
    """Gives a cluster without users its first one, if the settings have it."""
    user = settings.admin_user
    if user is None or metadata.image.users:
        return
    password = settings.first_admin_password()
    if password is None:
        return
    made = await asyncio.to_thread(_all_credentials, password.reveal())
    if await metadata.add_first_user(user, UserChange(made)):
        logger.info("the first user was added to the cluster", extra=fields(user=user))


def _all_credentials(password: str) -> Credentials:
    return {mechanism: new_credential(mechanism, password) for mechanism in ScramMechanism}


def peer_login(settings: SecuritySettings) -> PeerLogin:
    """How this broker logs in to another one; PeerError if it cannot. The file is read each time: passwords change."""
    user = settings.inter_broker_user
    if user is None or settings.inter_broker_password_file is None:
        raise PeerError(
            "the other broker asks for a login: set security.inter_broker_user and security.inter_broker_password_file"
        )
    try:
        password = settings.inter_broker_password().reveal()
    except ConfigError as error:
        raise PeerError(str(error)) from None
    name = settings.inter_broker_mechanism
    exchange: ClientExchange = (
        PlainClient(user, password) if name == PLAIN else ScramClient(ScramMechanism(name), user, password)
    )
    return PeerLogin(name, exchange)
