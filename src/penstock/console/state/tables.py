"""The tables of the console, and the steps that make them.

    console_users       name; password_hash, role, is_disabled, grants (JSON), created_at, changed_at
    console_identities  id (hash of issuer and subject); user_name, issuer, subject, bound_at: users of a provider
    console_sessions    id (hash of the cookie); user_name, csrf, created_at, seen_at, address, agent
    console_tokens      id; secret_hash, user_name, label, role, created_at, expires_at, used_at
    console_audit       id (in the order of time); at, user_name, via, address, operation, cluster, resource, params,
                        before_value, after_value, outcome, problem
    console_rules       id; kind, name, body (JSON): masking rules, alert rules, silences, jobs
    console_events      id; kind, rule, at, ended_at, body (JSON): alerts that fired, runs of jobs
    console_samples     series, tier, at; value
    console_values      name; value: what the console has to remember of itself

Times are milliseconds since 1970. An id is its time in hexadecimal digits and then random ones, so ids sort by time.
"""

from __future__ import annotations

import secrets

from penstock.clock import Clock
from penstock.sql.database import Connection
from penstock.sql.migrations import Component

USERS = "console_users"
IDENTITIES = "console_identities"
SESSIONS = "console_sessions"
TOKENS = "console_tokens"
AUDIT = "console_audit"
RULES = "console_rules"
EVENTS = "console_events"
SAMPLES = "console_samples"
VALUES = "console_values"

MAX_NAME = 128
MAX_ADDRESS = 64
_HASH = 64
_ID = 32


def new_id(clock: Clock) -> str:
    return f"{clock.now_ms():012x}{secrets.token_hex(10)}"


def first_id_at(time_ms: int) -> str:
    """Not after any id of this time or later."""
    return f"{max(0, time_ms):012x}"


def _create_first_tables(connection: Connection) -> None:
    dialect = connection.dialect
    big, small, text = f"{dialect.big_integer} NOT NULL", f"{dialect.small_integer} NOT NULL", dialect.long_text

    def varchar(length: int) -> str:
        return f"{dialect.varchar(length)} NOT NULL"

    made = [
        dialect.create_table(
            USERS,
            [
                ("name", varchar(MAX_NAME)),
                ("password_hash", varchar(255)),
                ("role", varchar(16)),
                ("is_disabled", small),
                ("grants", f"{text} NOT NULL"),
                ("created_at", big),
                ("changed_at", big),
            ],
            primary_key=["name"],
        ),
        dialect.create_table(
            SESSIONS,
            [
                ("id", varchar(_HASH)),
                ("user_name", varchar(MAX_NAME)),
                ("csrf", varchar(_HASH)),
                ("created_at", big),
                ("seen_at", big),
                ("address", varchar(MAX_ADDRESS)),
                ("agent", varchar(200)),
            ],
            primary_key=["id"],
            indexes=["user_name"],
        ),
        dialect.create_table(
            TOKENS,
            [
                ("id", varchar(_ID)),
                ("secret_hash", varchar(_HASH)),
                ("user_name", varchar(MAX_NAME)),
                ("label", varchar(MAX_NAME)),
                ("role", varchar(16)),
                ("created_at", big),
                ("expires_at", big),
                ("used_at", big),
            ],
            primary_key=["id"],
            indexes=["user_name"],
        ),
        dialect.create_table(
            AUDIT,
            [
                ("id", varchar(_ID)),
                ("at", big),
                ("user_name", varchar(MAX_NAME)),
                ("via", varchar(16)),
                ("address", varchar(MAX_ADDRESS)),
                ("operation", varchar(64)),
                ("cluster", varchar(64)),
                ("resource", varchar(300)),
                ("params", f"{text} NOT NULL"),
                ("before_value", f"{text} NOT NULL"),
                ("after_value", f"{text} NOT NULL"),
                ("outcome", varchar(16)),
                ("problem", f"{text} NOT NULL"),
            ],
            primary_key=["id"],
            indexes=["user_name", "operation"],
        ),
        dialect.create_table(
            RULES,
            [("id", varchar(_ID)), ("kind", varchar(32)), ("name", varchar(300)), ("body", f"{text} NOT NULL")],
            primary_key=["id"],
            indexes=["kind"],
        ),
        dialect.create_table(
            EVENTS,
            [
                ("id", varchar(_ID)),
                ("kind", varchar(32)),
                ("rule", varchar(_HASH)),
                ("at", big),
                ("ended_at", big),
                ("body", f"{text} NOT NULL"),
            ],
            primary_key=["id"],
            indexes=["rule"],
        ),
        dialect.create_table(
            SAMPLES,
            [("series", big), ("tier", small), ("at", big), ("value", big)],
            primary_key=["series", "tier", "at"],
        ),
        dialect.create_table(
            VALUES, [("name", varchar(MAX_NAME)), ("value", f"{text} NOT NULL")], primary_key=["name"]
        ),
    ]
    for statements in made:
        for statement in statements:
            connection.change(statement)


def _create_identities(connection: Connection) -> None:
    dialect = connection.dialect
    statements = dialect.create_table(
        IDENTITIES,
        [
            ("id", f"{dialect.varchar(_HASH)} NOT NULL"),
            ("user_name", f"{dialect.varchar(MAX_NAME)} NOT NULL"),
            ("issuer", f"{dialect.long_text} NOT NULL"),
            ("subject", f"{dialect.long_text} NOT NULL"),
            ("bound_at", f"{dialect.big_integer} NOT NULL"),
        ],
        primary_key=["id"],
        indexes=["user_name"],
    )
    for statement in statements:
        connection.change(statement)


COMPONENT = Component("console", (_create_first_tables, _create_identities))
