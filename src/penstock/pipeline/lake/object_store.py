"""Lakes on S3: which options a store takes, how Arrow and Hadoop receive them, and why it could not be reached.

Options have the names that delta-rs knows them by. Tasks read and write files through Arrow, so an option that only one
of the two would follow is refused: half of a lake would be elsewhere.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlparse

from penstock.pipeline.failure import OptionError, PipelineError

ACCESS_KEY = "AWS_ACCESS_KEY_ID"
SECRET_KEY = "AWS_SECRET_ACCESS_KEY"
TOKEN = "AWS_SESSION_TOKEN"
REGION = "AWS_REGION"
ENDPOINT = "AWS_ENDPOINT_URL"
ALLOW_HTTP = "AWS_ALLOW_HTTP"
VIRTUAL_HOSTS = "AWS_VIRTUAL_HOSTED_STYLE_REQUEST"
UNSIGNED = "AWS_SKIP_SIGNATURE"

_TEXTS = {
    ACCESS_KEY: "access_key",
    SECRET_KEY: "secret_key",
    TOKEN: "session_token",
    REGION: "region",
    ENDPOINT: "endpoint_override",
}
"""As Arrow calls them."""
_HADOOP = {
    ACCESS_KEY: "access.key",
    SECRET_KEY: "secret.key",
    TOKEN: "session.token",
    REGION: "endpoint.region",
    ENDPOINT: "endpoint",
}
"""As Hadoop's connector calls them."""
_SWITCHES = {VIRTUAL_HOSTS: "force_virtual_addressing", UNSIGNED: "anonymous"}
KNOWN = (*_TEXTS, ALLOW_HTTP, *_SWITCHES)

# Enough to see that the server answers; afterwards delta-rs keeps its own, longer limits.
_FIRST_LOOK = {"max_retries": "2", "retry_timeout": "10s", "connect_timeout": "5s", "timeout": "20s"}

_SCHEMES = ("s3", "s3a")
_COLOUR = re.compile("\x1b\\[[0-9;]*m")
_SAID = re.compile(r"<Code>(.*?)</Code>.*?<Message>(.*?)</Message>", re.DOTALL)


def is_s3(uri: str) -> bool:
    return urlparse(uri).scheme in _SCHEMES


def checked(uri: str, options: Mapping[str, str]) -> dict[str, str]:
    """Options by their proper names; one that is not known, or cannot be followed, is an error that names it."""
    if options and not is_s3(uri):
        raise OptionError(f"{uri} takes no --storage {min(options)}: only a lake on S3 has such options")
    found: dict[str, str] = {}
    for given, value in options.items():
        name = given.upper()
        if name not in KNOWN:
            close = difflib.get_close_matches(name, KNOWN, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(KNOWN)}"
            raise OptionError(f"there is no --storage {given}; {hint}")
        if (name in _SWITCHES or name == ALLOW_HTTP) and value.lower() not in ("true", "false"):
            raise OptionError(f"--storage {given} is true or false, not {value!r}")
        found[name] = value
    if (ACCESS_KEY in found) != (SECRET_KEY in found):
        raise OptionError(f"--storage {ACCESS_KEY} and {SECRET_KEY} go together")
    _check_endpoint(found)
    return found


def first_look(options: Mapping[str, str]) -> dict[str, str]:
    """For delta-rs, to find out soon whether there is a store at all."""
    return _FIRST_LOOK | dict(options)


def for_arrow(options: Mapping[str, str]) -> dict[str, Any]:
    texts = {theirs: options[name] for name, theirs in _TEXTS.items() if name in options}
    switches = {theirs: _is_on(options[name]) for name, theirs in _SWITCHES.items() if name in options}
    return texts | switches


def for_hadoop(uri: str, options: Mapping[str, str]) -> dict[str, str]:
    """For Hadoop's connector, as settings of the bucket alone."""
    texts = {theirs: options[name] for name, theirs in _HADOOP.items() if name in options}
    if ENDPOINT in options:
        texts["connection.ssl.enabled"] = str(options[ENDPOINT].startswith("https:")).lower()
        texts["path.style.access"] = str(not _is_on(options.get(VIRTUAL_HOSTS, "false"))).lower()
    if _is_on(options.get(UNSIGNED, "false")):
        texts["aws.credentials.provider"] = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
    return {f"fs.s3a.bucket.{urlparse(uri).netloc}.{name}": value for name, value in texts.items()}


def unreachable(uri: str, options: Mapping[str, str], error: Exception) -> PipelineError:
    """The message for an error of delta-rs or Arrow: one line, with the store's own words or else the last cause."""
    text = _COLOUR.sub("", str(error))
    said = _SAID.search(text)
    if said is not None:
        reason = f"{said[2].strip().rstrip('.')} ({said[1].strip()})"
    else:
        lines = [line.strip(" \t↳") for line in text.splitlines() if line.strip()]
        reason = lines[-1] if lines else type(error).__name__
    where = f"{uri} at {options[ENDPOINT]}" if ENDPOINT in options else uri
    return PipelineError(f"{where}: {reason}")


def _check_endpoint(options: Mapping[str, str]) -> None:
    if ENDPOINT not in options:
        return
    endpoint = options[ENDPOINT]
    parts = urlparse(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise OptionError(f"--storage {ENDPOINT} is an address such as https://host:port, not {endpoint!r}")
    if parts.scheme == "http" and not _is_on(options.get(ALLOW_HTTP, "false")):
        raise OptionError(f"--storage {ENDPOINT}: {endpoint} is not encrypted; {ALLOW_HTTP}=true allows that")


def _is_on(value: str) -> bool:
    return value.lower() == "true"
