"""Bodies and options of requests of the Tinker API: `read_body`, `read_sampling`, `require_absent` (extra: `web`)."""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request

from operant.language.engines.protocol import Sampling

MOST_BYTES = 64_000_000
"""Maximum size of the body of a request, in bytes."""
MOST_TOKENS = 1024
"""Default maximum number of tokens of a completion, if the context has room for them."""


async def read_body(request: Request) -> bytes:
    """Return the body of a request.

    Raises:
        ValueError: the body is too long, or its compression is not supported.
    """
    received = bytearray()
    async for chunk in request.stream():
        received += chunk
        if len(received) > MOST_BYTES:
            raise ValueError(f"the body of a request may have at most {MOST_BYTES} bytes")
    body = bytes(received)
    encoding = request.headers.get("content-encoding", "identity")
    if encoding == "gzip":
        return unzipped(body)
    if encoding != "identity":
        raise ValueError(f"content-encoding {encoding!r} is not supported; send an uncompressed body")
    return body


def unzipped(body: bytes) -> bytes:
    """Return the content of a body compressed by gzip.

    Raises:
        ValueError: it is too long, or not compressed by gzip.
    """
    stream = zlib.decompressobj(31)  # gzip's format
    try:
        found = stream.decompress(body, MOST_BYTES)
    except zlib.error as error:
        raise ValueError(f"the body is not compressed by gzip: {error}") from error
    if stream.unconsumed_tail:
        raise ValueError(f"the body of a request may have at most {MOST_BYTES} bytes")
    if not stream.eof:
        raise ValueError("the compressed body is incomplete")
    return found


def require_absent(body: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise an error for fields that are not supported.

    Args:
        body: fields of the request.
        names: fields that are not supported.

    Raises:
        ValueError: a field has a value.
    """
    for name in names:
        if body.get(name):
            raise ValueError(f"{name} is not supported here, got {body[name]!r}; leave it out")


def read_sampling(given: Mapping[str, Any], room: int | None = None) -> tuple[Sampling, list[Any], int | None]:
    """Return the sampling options, the stop sequences, and the seed of a request.

    Args:
        given: sampling parameters of the request.
        room: tokens that the context has left after the prompt; None: unlimited.

    Raises:
        ValueError: a value is out of range.
    """
    stop = given.get("stop")
    if stop == []:
        raise ValueError("stop=[] switches off the end of sequence, which is not supported here; leave stop out")
    most = given.get("max_tokens")
    if most is None:
        most = MOST_TOKENS if room is None else max(1, min(MOST_TOKENS, room))
    sampling = Sampling(
        max_tokens=int(most),
        temperature=float(given.get("temperature", 1.0)),
        top_k=max(0, int(given.get("top_k", -1))),
        top_p=float(given.get("top_p", 1.0)),
    )
    stops = [] if stop is None else [stop] if isinstance(stop, str) else list(stop)
    if "" in stops:
        raise ValueError("stop has an empty string, which would end every completion; leave it out")
    return sampling, stops, given.get("seed")
