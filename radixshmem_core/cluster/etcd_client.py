# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Requests to etcd through its JSON gateway: several endpoints, user and password, TLS, deadlines.

Keys and values are text here; on the wire they are base64.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import RadixError
from .registry import RegistryOptions, RegistryUnavailable

try:
    import requests
    from etcd3gw import exceptions
    from etcd3gw.client import Etcd3Client
except ImportError as error:
    raise RadixError(
        f"an etcd:// registry needs the package etcd3gw ({error}); install it with "
        "`pip install 'radixshmem[etcd]'`"
    ) from error

__all__ = ["EtcdClient", "NotFound", "decode", "encode", "prefix_end"]

_log = logging.getLogger("radixshmem.cluster")

_TIMEOUT_S = 2.0  # of one request to one endpoint
_API = "/v3/"  # etcd 3.4 and newer
_INVALID_ARGUMENT, _NOT_FOUND, _PERMISSION, _EXHAUSTED, _UNAUTHENTICATED = 3, 5, 7, 8, 16
_NO_ANSWER = (
    exceptions.ConnectionFailedError,
    exceptions.ConnectionTimeoutError,
    exceptions.InternalServerError,
    requests.exceptions.RequestException,
    ValueError,  # what came is not JSON
)


class NotFound(RadixError):
    """etcd does not know what a request names, e.g. a lease that has run out."""


class EtcdClient:
    """The etcd cluster at `endpoints`. Thread-safe."""

    def __init__(self, endpoints: Sequence[str], options: RegistryOptions) -> None:
        self._endpoints = list(endpoints)
        self._options = options
        self._password = _password(options)
        self._session = _session(options)
        self._clients = [self._connect(endpoint) for endpoint in endpoints]
        self._current = 0
        self._signing_in = threading.Lock()
        self._watching: Any = None
        self._closed = False

    def _connect(self, endpoint: str) -> Etcd3Client:
        host, _, port = endpoint.rpartition(":")
        client = Etcd3Client(
            host.strip("[]"),
            int(port),
            protocol="https" if self._options.etcd_ca_file else "http",
            timeout=_TIMEOUT_S,
            api_path=_API,
        )
        client.session = self._session
        return client

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer of the first endpoint that gives one, the last good one first."""
        last = ""
        for step in range(len(self._clients)):
            at = (self._current + step) % len(self._clients)
            try:
                answer = self._ask(self._clients[at], path, body)
            except _NO_ANSWER as error:
                last = f"{self._endpoints[at]}: {_reason(error)}"
                continue
            self._current = at
            return answer
        raise RegistryUnavailable(
            f"no etcd at {', '.join(self._endpoints)} answers ({last}); check --registry and that "
            "etcd runs and is reachable"
        )

    def transact(
        self, compare: list[dict[str, Any]], success: list[dict[str, Any]]
    ) -> dict[str, Any]:
        return self.post("/kv/txn", {"compare": compare, "success": success})

    def watch(self, body: dict[str, Any], timeout_s: float) -> bool:
        """Whether etcd reports anything for this watch within the time. No outage is raised."""
        client = self._clients[self._current]
        try:
            response = self._session.post(
                client.get_url("/watch"),
                json={"create_request": body},
                stream=True,
                timeout=(min(_TIMEOUT_S, timeout_s), timeout_s),
            )
            with contextlib.closing(response):
                self._watching = response
                if self._closed or response.status_code != requests.codes["ok"]:
                    return False
                return any(_is_news(line) for line in response.iter_lines())
        except _NO_ANSWER:
            return False
        finally:
            self._watching = None

    def close(self) -> None:
        self._closed = True
        watching = self._watching
        if watching is not None:
            with contextlib.suppress(Exception):  # only from urllib3 2.3 on; else it times out
                watching.raw.shutdown()
        self._session.close()

    # ------------------------------------------------------------ one endpoint

    def _ask(self, client: Etcd3Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._plain_ask(client, path, body)
        except _Refused as refusal:
            if refusal.signed_out and self._password:
                self._sign_in(client)
                return self._plain_ask(client, path, body)
            raise

    def _plain_ask(self, client: Etcd3Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = client.post(client.get_url(path), json=body)
            return answer
        except _NO_ANSWER:
            raise
        except exceptions.Etcd3Exception as error:
            code, message = _verdict(error)
            if code == _NOT_FOUND:
                raise NotFound(message) from error
            if code == _EXHAUSTED:
                raise RegistryUnavailable(
                    f"etcd at {client.base_url} has no room ({message}); compact it, see `etcdctl "
                    "alarm list`"
                ) from error
            raise _Refused(client.base_url, code, message) from error

    def _sign_in(self, client: Etcd3Client) -> None:
        """Get a token. Tokens of etcd end some minutes after their last use, and with its death."""
        with self._signing_in:
            self._session.headers.pop("Authorization", None)
            body = {"name": self._options.etcd_user, "password": self._password}
            answer = self._plain_ask(client, "/auth/authenticate", body)
            self._session.headers["Authorization"] = str(answer["token"])


class _Refused(RadixError):
    def __init__(self, url: str, code: int, message: str) -> None:
        super().__init__(
            f"etcd at {url} refuses: {message}; check --etcd-user and --etcd-password-file, and "
            "that this user may read and write below /radixshmem/"
        )
        signed_out = "user name is empty", "invalid auth token"
        self.signed_out = code == _UNAUTHENTICATED or any(text in message for text in signed_out)


def _password(options: RegistryOptions) -> str:
    if bool(options.etcd_user) != bool(options.etcd_password_file):
        raise ValueError("give --etcd-user and --etcd-password-file together, or neither")
    return _content("etcd_password_file", options.etcd_password_file).rstrip("\n")


def _session(options: RegistryOptions) -> requests.Session:
    if bool(options.etcd_cert_file) != bool(options.etcd_key_file):
        raise ValueError("give --etcd-cert-file and --etcd-key-file together, or neither")
    if options.etcd_cert_file and not options.etcd_ca_file:
        raise ValueError("--etcd-cert-file needs --etcd-ca-file, the authority that etcd's has")
    session = requests.Session()
    session.trust_env = False  # a proxy for the web does not lead to etcd
    for what in ("etcd_ca_file", "etcd_cert_file", "etcd_key_file"):
        _content(what, getattr(options, what))
    if options.etcd_ca_file:
        session.verify = options.etcd_ca_file
    if options.etcd_cert_file:
        session.cert = (options.etcd_cert_file, options.etcd_key_file)
    return session


def _content(what: str, path: str) -> str:
    """The text of a file; empty for no path. ValueError names the option."""
    try:
        return Path(path).read_text() if path else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"--{what.replace('_', '-')} {path} cannot be read ({error}); check the path and its "
            "permissions"
        ) from error


def _verdict(error: exceptions.Etcd3Exception) -> tuple[int, str]:
    """etcd's status code and text; (-1, all of it) if it is something else that answered."""
    try:
        parsed = json.loads(error.detail_text or "")
        return int(parsed["code"]), str(parsed.get("error") or parsed.get("message"))
    except (ValueError, KeyError, TypeError):
        return -1, str(error.detail_text or error)[:200]


def _reason(error: Exception) -> str:
    """What the system said, which lies below what three libraries made of it."""
    told = str(getattr(error, "detail_text", "") or error)[:200]
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            told = cause.strerror
        cause = cause.__cause__ or cause.__context__
    return told


def _is_news(line: bytes) -> bool:
    """Anything but the confirmation that the watch began.

    Also the refusal to begin it, e.g. because the token has ended: the listing that follows gets a
    new one.
    """
    try:
        result = json.loads(line)["result"] if line.strip() else {"created": True}
        return "canceled" in result or "created" not in result
    except (ValueError, KeyError, TypeError, AttributeError):
        return True


def encode(text: str | bytes) -> str:
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def decode(text: str) -> bytes:
    return base64.b64decode(text)


def prefix_end(prefix: str) -> str:
    """The end of the range of all keys that begin with `prefix`, encoded."""
    return encode(prefix[:-1] + chr(ord(prefix[-1]) + 1))
