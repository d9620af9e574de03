"""The HTML document of every page.

It is the same for all: the scripts read the address, ask the API and draw. Nothing of a cluster is in the document, so
nothing of a cluster can break out of it; and its policy needs neither inline scripts nor `unsafe-eval`.
"""

from __future__ import annotations

import html
from importlib.metadata import version

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse

from penstock.console.console import Console


def install(app: FastAPI, console: Console) -> None:
    """Adds the pages: `/` and everything under `/c/`, where the second part of the path names a cluster."""

    @app.get("/", include_in_schema=False)
    @app.get("/c/{rest:path}", include_in_schema=False)
    async def page(request: Request) -> HTMLResponse:
        return HTMLResponse(document(str(request.scope.get("root_path", ""))), headers={"cache-control": "no-store"})


def document(prefix: str) -> str:
    """The document for a console behind a prefix; the version in addresses lets browsers keep files for long."""
    at = html.escape(prefix, quote=True)
    release = version("penstock")
    return f"""<!doctype html>
<html lang="en" data-base="{at}"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Penstock</title>
<link rel="icon" href="{at}/static/mark.svg">
<link rel="stylesheet" href="{at}/static/tokens.css?{release}">
<link rel="stylesheet" href="{at}/static/console.css?{release}">
<script src="{at}/static/theme.js?{release}"></script>
<script type="module" src="{at}/static/app.js"></script>
</head><body><div id="console"></div><noscript>The console needs JavaScript; its API under /api does not.</noscript>
</body></html>"""
