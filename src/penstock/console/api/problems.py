"""Errors as JSON problem objects (RFC 9457): what went wrong, and what was not done."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from penstock.console.errors import problem_of, title_of
from penstock.errors import PenstockError
from penstock.logs import fields

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
_MOST_REASONS = 5
_CODES = {400: "INVALID_REQUEST", 404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED", 413: "TOO_LARGE"}


class ProblemBody(BaseModel):
    """What went wrong."""

    status: int
    code: str
    title: str
    detail: str


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route."""
    every = sorted({400, 401, 403, 404, 409, 413, 422, 429, 502, 503, 504, *statuses})
    return {
        status: {
            "model": ProblemBody,
            "description": title_of(status),
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemBody"}}},
        }
        for status in every
    }


def answer(status: int, code: str, detail: str) -> JSONResponse:
    body = {"status": status, "code": code, "title": title_of(status), "detail": detail}
    return JSONResponse(body, status, media_type=MEDIA_TYPE)


def install_problems(app: FastAPI) -> None:
    """Has every expected error answered with its status, and every other one with 500 and no details."""

    async def expected(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, PenstockError)
        problem = problem_of(error)
        if problem.status >= 500:
            facts = fields(path=request.url.path, status=problem.status, problem=problem.detail)
            logger.warning("a request failed", extra=facts)
        return answer(problem.status, problem.code, problem.detail)

    async def malformed(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        reasons = [
            f"{'.'.join(str(part) for part in each['loc'] if part != 'body') or 'body'}: {each['msg']}"
            for each in error.errors()[:_MOST_REASONS]
        ]
        status = 400 if any(each["type"] == "json_invalid" for each in error.errors()) else 422
        return answer(status, "MALFORMED", f"{'; '.join(reasons)}; nothing was done")

    async def plain(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return answer(error.status_code, _CODES.get(error.status_code, "REFUSED_BY_SERVER"), str(error.detail))

    app.add_exception_handler(PenstockError, expected)
    app.add_exception_handler(RequestValidationError, malformed)
    app.add_exception_handler(HTTPException, plain)
