"""Addresses of queues: which form, and its options. Pure.

    kafka://HOST:PORT[,HOST:PORT...]     brokers of Penstock or Kafka; without "kafka://" too
    mysql://…, postgresql://…, sqlite:///FILE
    redis://HOST:PORT/DATABASE
    file:///FOLDER
    tcp://HOST:PORT
    memory://[NAME]

Options follow a question mark: `memory://events?partitions=4`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit

from penstock.sdk.errors import InvalidInputError

FORMS = ("kafka", "mysql", "mariadb", "postgresql", "sqlite", "redis", "rediss", "file", "tcp", "memory")


@dataclass(frozen=True, slots=True, repr=False)
class QueueAddress:
    """An address in parts. It may have a password in it: only `shown` is for people."""

    form: str
    text: str
    """The whole address, as it was given."""
    location: str
    """What stands between the form and the options."""
    options: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> QueueAddress:
        """Raises `InvalidInputError` for a form that there is not, and for text that is no address."""
        if not isinstance(text, str) or not text:
            raise InvalidInputError(f"an address is a text such as localhost:9092 or memory://, not {text!r}")
        if "://" not in text:
            return cls("kafka", text, text, {})
        form = text.partition("://")[0].lower()
        if form not in FORMS:
            raise InvalidInputError(f"there are no queues at {form}://; there are: {', '.join(FORMS)}")
        try:
            parts = urlsplit(text)
        except ValueError as error:
            raise InvalidInputError(f"the {form} address cannot be read: {error}") from None
        options: dict[str, str] = {}
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name in options:
                raise InvalidInputError(f"the {form} address has the option {name} twice")
            options[name] = value
        return cls(form, text, parts.netloc + parts.path, options)

    @property
    def shown(self) -> str:
        """Without user, password and options."""
        return f"{self.form}://{self.location.rpartition('@')[2]}"

    def __repr__(self) -> str:
        return f"QueueAddress({self.shown})"

    def without_option(self, name: str) -> str:
        """The whole address, with its password, but without an option."""
        rest = urlencode({each: value for each, value in self.options.items() if each != name})
        return self.text if name not in self.options else self.text.partition("?")[0] + (rest and f"?{rest}")

    def check_options(self, *known: str) -> None:
        """Raises `InvalidInputError` for an option that the form does not have."""
        for name in self.options:
            if name not in known:
                has = f"its options are {', '.join(known)}" if known else "it has none"
                raise InvalidInputError(f"{self.shown} has no option {name}: {has}")

    def number(self, name: str, default: int, least: int = 1) -> int:
        """An option that is a whole number."""
        given = self.options.get(name)
        if given is None:
            return default
        if not given.isascii() or not given.isdigit() or int(given) < least:
            raise InvalidInputError(f"{self.shown}: {name} must be a whole number from {least} on, not {given!r}")
        return int(given)
