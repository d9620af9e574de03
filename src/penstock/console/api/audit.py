"""/api/audit: the audit log, searched and exported. There is no way to change it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator
from dataclasses import asdict, fields
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query
from fastapi.responses import StreamingResponse

from penstock.admin import Page
from penstock.console.api.dependencies import TheCaller, TheConsole
from penstock.console.api.parameters import MAX_TIME_MS
from penstock.console.state.audit import AuditEntry, AuditFilter

router = APIRouter(prefix="/audit", tags=["audit"])

Word = Annotated[str | None, Query(max_length=300)]
Time = Annotated[int | None, Query(ge=0, le=MAX_TIME_MS)]
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def _filter(
    user: Word = None,
    operation: Word = None,
    cluster: Word = None,
    resource: Word = None,
    outcome: Word = None,
    text: Word = None,
    since_ms: Time = None,
    until_ms: Time = None,
) -> AuditFilter:
    return AuditFilter(
        user=user,
        operation=operation,
        cluster=cluster,
        resource=resource,
        outcome=outcome,
        text=text,
        since_ms=since_ms,
        until_ms=until_ms,
    )


Wanted = Annotated[AuditFilter, Depends(_filter)]


@router.get("")
async def list_entries(
    console: TheConsole,
    caller: TheCaller,
    wanted: Wanted,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    after: Annotated[str | None, Query(max_length=64)] = None,
) -> Page[AuditEntry]:
    """Entries, the newest first; `next` of a page is `after` of the next one."""
    return await console.audit_log.list(caller, wanted, limit, after)


@router.get("/export", response_class=StreamingResponse, responses={200: {"content": {"text/csv": {}}}})
async def export(
    console: TheConsole, caller: TheCaller, wanted: Wanted, format: Literal["csv", "json"] = "csv"
) -> StreamingResponse:
    """All entries that match, as CSV or as lines of JSON."""
    entries = await console.audit_log.export(caller, wanted)
    lines = _csv(entries) if format == "csv" else _json(entries)
    media_type = "text/csv; charset=utf-8" if format == "csv" else "application/x-ndjson"
    name = f'attachment; filename="audit.{"csv" if format == "csv" else "jsonl"}"'
    return StreamingResponse(lines, media_type=media_type, headers={"content-disposition": name})


async def _json(entries: AsyncIterator[AuditEntry]) -> AsyncIterator[str]:
    async for entry in entries:
        yield f"{json.dumps(asdict(entry), ensure_ascii=False)}\n"


async def _csv(entries: AsyncIterator[AuditEntry]) -> AsyncIterator[str]:
    names = [field.name for field in fields(AuditEntry)]
    yield _line(names)
    async for entry in entries:
        yield _line([_plain(str(getattr(entry, name))) for name in names])


def _line(cells: list[str]) -> str:
    out = io.StringIO()
    csv.writer(out).writerow(cells)
    return out.getvalue()


def _plain(text: str) -> str:
    """A spreadsheet must not take a topic's name for a formula."""
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text
