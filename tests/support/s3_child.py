"""A server that speaks S3, in a process of its own: moto, which keeps everything in memory.

    python s3_child.py MEETING

Says on its standard output, in one line of JSON, its port and who may do what; then it serves. In buckets whose names
begin with MEETING a put-if-absent waits a while for another one of the same name, so that two that race meet.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from threading import Condition, Lock
from typing import Any

from moto import settings
from moto.core import DEFAULT_ACCOUNT_ID
from moto.iam.models import iam_backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]

USERS = {"writer": ["s3:*"], "reader": ["s3:Get*", "s3:List*"]}

_MEETING_S = 1.0


class OneWriteAtATime:
    """S3 decides in one step whether a put-if-absent is done; moto looks first, and writes then."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._lock = Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return self._application(environ, start_response)
        with self._lock:
            return self._application(environ, start_response)


class Meeting:
    """Lets those who put the same name, if it is absent, begin together."""

    def __init__(self, application: Application, prefix: str) -> None:
        self._application = application
        self._prefix = f"/{prefix}"
        self._came: Counter[str] = Counter()
        self._changed = Condition()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if "HTTP_IF_NONE_MATCH" in environ and path.startswith(self._prefix):
            with self._changed:
                self._came[path] += 1
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._came[path] > 1, _MEETING_S)
        return self._application(environ, start_response)


class Quiet(MotoRequestHandler):
    """Says nothing of what is asked for."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass


def keys_of(user: str, actions: list[str]) -> list[str]:
    """A new user's id and secret."""
    iam = iam_backends[DEFAULT_ACCOUNT_ID]["aws"]
    iam.create_user("us-east-1", user)
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": actions, "Resource": "*"}]}
    iam.put_user_policy(user, "all", json.dumps(policy))
    key = iam.create_access_key(user)
    return [key.access_key_id, key.secret_access_key]


def main() -> None:
    # From the first request on signatures are looked at, and what a user is allowed to do.
    settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
    users = {user: keys_of(user, actions) for user, actions in USERS.items()}
    application = Meeting(OneWriteAtATime(DomainDispatcherApplication(create_backend_app)), sys.argv[1])
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Quiet)
    print(json.dumps({"port": server.server_port, "users": users}), flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
