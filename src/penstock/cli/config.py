"""`penstock config`: shows settings with origin and meaning, and checks settings files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.options import Json
from penstock.cli.output import show_json, show_table
from penstock.config.broker import BROKER_SETTINGS, Config, spelled
from penstock.config.loader import load
from penstock.config.topic import TOPIC_SETTINGS

app = typer.Typer(help="Show settings with origin and meaning; check a settings file.")


@app.callback(invoke_without_command=True)
def show(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="TOML file with settings.")] = None,
    json: Json = False,
) -> None:
    """Show every effective setting with its origin and meaning."""
    if context.invoked_subcommand:
        return
    loaded = load(config, os.environ, {})
    rows = effective(loaded.config)
    if json:
        show_json([{"key": key, "value": value, "origin": loaded.origins[key], "doc": doc} for key, value, doc in rows])
        return
    show_table(
        ("key", "value", "origin", "meaning"),
        [(key, value, loaded.origins[key], doc) for key, value, doc in rows],
    )


def effective(config: Config) -> list[tuple[str, str, str]]:
    """Key, value as text and meaning of every setting, topic defaults last."""
    rows = []
    for key, setting in BROKER_SETTINGS.items():
        section, _, name = key.partition(".")
        rows.append((key, spelled(getattr(getattr(config, section), name)), setting.doc))
    for name, setting in TOPIC_SETTINGS.items():
        rows.append((f"topic.{name}", config.topic.get(name, setting.default), setting.doc))
    return rows


@app.command("topic")
def topic(json: Json = False) -> None:
    """List topic settings with defaults and meaning."""
    settings = TOPIC_SETTINGS.values()
    if json:
        show_json(
            [
                {"key": each.name, "default": each.default, "allowed": each.allowed(), "doc": each.doc}
                for each in settings
            ]
        )
        return
    show_table(
        ("key", "default", "allowed", "meaning"),
        [(each.name, each.default, each.allowed(), each.doc) for each in settings],
    )


@app.command("check")
def check(file: Annotated[Path, typer.Argument(metavar="FILE", help="TOML file to check.")]) -> None:
    """Check a settings file; environment variables are ignored."""
    loaded = load(file, {}, {})
    count = sum(origin != "default" for origin in loaded.origins.values())
    typer.echo(f"{file} is valid: {count} {'setting' if count == 1 else 'settings'}")
