"""ASGI middleware that requires a key for every path of a vLLM server: `Gate`.

vLLM requires its key only under `/v1` and a few other prefixes, but not for the paths that exchange weights, call
workers or put the server to sleep. This file runs inside the server, in a Python that may lack operant, so it imports
only the standard library.
"""

import hmac
import os
from collections.abc import Awaitable, Callable
from typing import Any

KEY = "VLLM_API_KEY"
"""Environment variable with the key."""

App = Callable[[Any, Any, Any], Awaitable[None]]


class Gate:
    """Middleware that forwards requests with `Authorization: Bearer KEY`, and responds to others with status 401.

    Args:
        app: the wrapped application.

    Raises:
        KeyError: the environment variable is not set.
    """

    def __init__(self, app: App):
        self._app, self._wanted = app, f"Bearer {os.environ[KEY]}".encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one connection of the ASGI protocol."""
        if scope["type"] == "lifespan" or self._allows(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 401, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": f"send the key of {KEY}".encode()})
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _allows(self, scope: Any) -> bool:
        found = [value for name, value in scope.get("headers", ()) if name.lower() == b"authorization"]
        return len(found) == 1 and hmac.compare_digest(found[0], self._wanted)
