"""JSON over HTTP, with timeouts and retries: `Connection`."""

import http.client
import json
import os
import time
import warnings
from ipaddress import ip_address
from typing import Any, cast
from urllib.parse import urlsplit

KEY = "VLLM_API_KEY"
"""Environment variable with the server's API key, as in vLLM."""
PAUSE = 0.5
"""Delay in seconds before the first retry, doubled for each further one."""

_SHOWN = 500
"""Maximum number of characters of a server's response in an error."""
_AGAIN = {429, 500, 502, 503, 504}
"""HTTP status codes that are retried."""
_OK = 200


class ServerError(OSError):
    """A server is unreachable, too slow, or rejects a request.

    Attributes:
        status: HTTP status; 0 if there was no response.
    """

    def __init__(self, message: str, status: int = 0):
        super().__init__(message)
        self.status = status


class Connection:
    """Connection to a server, with timeouts and retries. It is safe to share between threads.

    Args:
        address: URL of the server, such as `http://127.0.0.1:8000`.
        seconds: timeout of one attempt.
        attempts: attempts per request if the server does not respond or is busy. All requests are idempotent.

    Raises:
        ValueError: the address is invalid.
    """

    def __init__(self, address: str, *, seconds: float = 600.0, attempts: int = 3):
        try:
            parts = urlsplit(address)
            host, port = parts.hostname, parts.port
        except ValueError as error:  # of its port, or of the brackets of IPv6
            raise ValueError(f"the address of a server must be a URL, got {address!r}: {error}") from None
        if parts.scheme not in ("http", "https") or not host:
            raise ValueError(f"the address of a server must be a URL such as http://127.0.0.1:8000, got {address!r}")
        if not seconds > 0 or attempts < 1:
            raise ValueError(f"seconds must be above 0 and attempts at least 1, got {seconds} and {attempts}")
        self.address, self.seconds, self.attempts = address.rstrip("/"), seconds, attempts
        self._secure, self._host, self._port = parts.scheme == "https", host, port
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY):
            self._headers["Authorization"] = f"Bearer {key}"
        if not self._secure and not loopback(host):
            warnings.warn(
                f"traffic with {address} is not encrypted: use https, or a tunnel to 127.0.0.1",
                RuntimeWarning,
                stacklevel=3,
            )

    def get(self, path: str) -> Any:
        """Return the server's response at a path; see `post`."""
        return self._ask("GET", path, None)

    def post(self, path: str, body: Any = None) -> Any:
        """Send an object and return the response, None if it is empty.

        Raises:
            ServerError: the server does not respond or rejects the request; the message contains the reason.
        """
        return self._ask("POST", path, body)

    def _ask(self, method: str, path: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body, allow_nan=False).encode()
        for attempt in range(self.attempts):
            try:
                return self._once(method, path, data)
            except ServerError as error:
                if attempt + 1 == self.attempts or (error.status and error.status not in _AGAIN):
                    raise
            time.sleep(PAUSE * 2**attempt)
        raise AssertionError("unreachable")

    def _once(self, method: str, path: str, data: bytes | None) -> Any:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self.seconds)
        try:
            connection.request(method, self._path + path, data, self._headers)
            answer = connection.getresponse()
            status, text = answer.status, answer.read().decode("utf-8", errors="replace")
        except TimeoutError as error:
            raise ServerError(
                f"{self.address}{path} did not respond within {self.seconds:g} seconds: request fewer tokens at "
                "a time, or raise the timeout"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            reason = "the connection was closed" if isinstance(error, http.client.HTTPException) else str(error)
            raise ServerError(f"{self.address} cannot be reached ({reason}): is the server running?") from error
        finally:
            connection.close()
        if status != _OK:
            raise ServerError(f"{self.address}{path} returned status {status}: {_reason(text)}", status)
        try:
            return json.loads(text) if text.strip() else None
        except json.JSONDecodeError as error:
            raise ServerError(f"{self.address}{path} did not return JSON: {text[:_SHOWN]!r}", status) from error


def loopback(host: str) -> bool:
    """Return whether a host name is that of this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _reason(text: str) -> str:
    """Return the message of an error response, in the formats of common servers."""
    try:
        found: object = json.loads(text)
    except json.JSONDecodeError:
        found = text
    for name in ("error", "message", "detail"):
        if isinstance(found, dict):
            parts = cast(dict[str, object], found)
            found = parts.get(name) or parts
    return str(found)[:_SHOWN]
