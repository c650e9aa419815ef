"""Access rules of the web app: allowed requests, and resources that pages may load.

Every page in the browser can reach a server on this machine, so requests are checked against allow-lists:

- The `Host` header must be a name of this server, against DNS rebinding.
- The method must be GET or HEAD for pages and files, or POST for data.
- A POST must be JSON, come from a page of this server (`Origin`, `Sec-Fetch-Site`) and have a header that other sites
  cannot send, since no response allows it (CORS).
- If there is a token, every request must have it: first in the printed URL, then in a cookie.
- Pages load nothing from other servers and run no inline scripts (Content-Security-Policy). Pages of the documentation
  have a separate policy (`operant.web.documentation_site`).
"""

import ipaddress
import secrets
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs, quote

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MOST_BYTES = 1_000_000
"""Maximum size of the body of a request, in bytes."""
COOKIE = "operant_token"
"""Name of the cookie with the token, before the port: browsers send the cookies of a host to all of its ports."""
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
"""Host names that only this machine can reach."""

POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; media-src 'self'; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy of responses without another one."""
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)
"""Headers of all responses."""


class Hosts:
    """Allowed host names of the server.

    Args:
        host: address of the server.
        port: the port.

    Attributes:
        port: the port.
    """

    def __init__(self, host: str, port: int) -> None:
        self.port, self._any = port, host in ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
        shown = f"[{host}]" if ":" in host else host
        self._names = {name.lower() for name in (*LOOPBACK, *([] if self._any else [shown]))}
        if self._any:
            self._names.add(socket.gethostname().lower())

    def allow(self, header: str) -> bool:
        """Return whether a `Host` header is a name of this server; bound to all addresses, any IP address is valid."""
        name, _, port = header.lower().rpartition(":") if not header.endswith("]") else (header.lower(), "", "80")
        if not name:
            name, port = port, "80"
        return port == str(self.port) and (name in self._names or (self._any and _is_address(name)))


class Guard:
    """ASGI middleware that enforces the access rules.

    Args:
        app: the ASGI app.
        hosts: allowed host names.
        token: token required in requests; None if only this machine can reach the server.
        end: function that ends open streams at shutdown.
    """

    def __init__(self, app: Any, hosts: Hosts, token: str | None, *, end: Callable[[], object] = lambda: None) -> None:
        self._app, self._hosts, self._token, self.end = app, hosts, token, end
        self._cookie = f"{COOKIE}_{hosts.port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward or reject a request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = _headers(scope)
        refused = self._refusal(scope["method"], headers)
        if refused is None and self._token is not None and not self._knows_token(headers):
            given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
            if scope["method"] == "GET" and secrets.compare_digest(given.encode(), self._token.encode()):
                await self._admit(scope, send)
                return
            refused = 403, "open the URL printed by `operant serve`, which contains the token"
        if refused is not None:
            await _answer(send, *refused)
            return
        await self._app(scope, _bounded(receive), _with_headers(send))

    def _refusal(self, method: str, headers: dict[str, list[str]]) -> tuple[int, str] | None:
        """Return status and reason if a request violates a rule, otherwise None."""
        host = headers.get("host", [])
        if len(host) != 1 or not self._hosts.allow(host[0]):
            return 421, "unknown host name: open the URL printed by `operant serve`"
        if method not in ("GET", "HEAD", "POST"):
            return 405, f"{method} is not allowed: use GET or POST"
        return _cross_site(headers, host[0]) if method == "POST" else None

    def _knows_token(self, headers: dict[str, list[str]]) -> bool:
        """Return whether a cookie is the token; those of other servers of this host may have any form."""
        pairs = (pair.strip().partition("=") for line in headers.get("cookie", []) for pair in line.split(";"))
        given = [value.encode() for name, _, value in pairs if name == self._cookie]
        return any(secrets.compare_digest(value, str(self._token).encode()) for value in given)

    async def _admit(self, scope: Scope, send: Send) -> None:
        """Move the token from the URL to a cookie."""
        cookie = f"{self._cookie}={self._token}; HttpOnly; SameSite=Strict; Path=/"
        path = "/" + quote(scope["path"].lstrip("/"))
        await _answer(send, 303, "", (b"location", path.encode()), (b"set-cookie", cookie.encode()))


def _cross_site(headers: dict[str, list[str]], host: str) -> tuple[int, str] | None:
    """Return status and reason if a POST does not come from a page of this server, otherwise None."""
    if headers.get("content-type", [""])[0].partition(";")[0].strip().lower() != "application/json":
        return 415, "the content type of a POST must be application/json"
    site = headers.get("sec-fetch-site", ["same-origin"])
    origin = headers.get("origin", [f"http://{host}"])
    if headers.get("x-operant") != ["1"] or site != ["same-origin"] or origin != [f"http://{host}"]:
        return 403, "only pages of this server may request this"
    length = headers.get("content-length", ["0"])[0]
    if not length.isdecimal() or int(length) > MOST_BYTES:
        return 413, f"the body must have at most {MOST_BYTES} bytes"
    return None


def _headers(scope: Scope) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return found


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


async def _answer(send: Send, status: int, text: str, *headers: tuple[bytes, bytes]) -> None:
    body = f"{text}\n".encode()
    plain = ((b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode()))
    start = {"type": "http.response.start", "status": status, "headers": [*plain, *HEADERS, *headers]}
    await send(start)
    await send({"type": "http.response.body", "body": body})


def _with_headers(send: Send) -> Send:
    async def forward(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = list(message.get("headers", ()))
            known = {name for name, _ in own}
            message = {**message, "headers": [*own, *(entry for entry in HEADERS if entry[0] not in known)]}
        await send(message)

    return forward


def _bounded(receive: Receive) -> Receive:
    """Return a receiver that stops if a body without a declared length is too long."""
    taken = 0

    async def limited() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        return {"type": "http.disconnect"} if taken > MOST_BYTES else message

    return limited
