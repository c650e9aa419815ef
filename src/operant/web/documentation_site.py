"""Documentation as a built site, served under `/docs/`.

Files are listed once when the server starts, and looked up by name; requests are never treated as paths. Pages of the
site have inline scripts and styles. Their Content-Security-Policy allows each of them by hash, and otherwise only files
of the site.
"""

import base64
import hashlib
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response

from operant.web.documentation import PREFIX

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".mp4": "video/mp4",
    ".webm": "video/webm",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
}
"""Media types of served files by suffix; other files are not served."""


class Inline(NamedTuple):
    """Inline scripts and styles of an HTML page.

    Attributes:
        scripts: texts of `<script>` elements without a source.
        styles: texts of `<style>` elements.
        attributes: values of `style` attributes.
    """

    scripts: list[str]
    styles: list[str]
    attributes: list[str]


class Site:
    """Built site.

    Args:
        folder: folder with `index.html`; links to files outside are ignored. Default: no site.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._root = folder.resolve() if folder else None
        self._files = dict(self._listed(self._root)) if self._root else {}

    def _listed(self, root: Path) -> list[tuple[str, Path]]:
        found = (path for path in root.rglob("*") if path.suffix in TYPES)
        return [(path.relative_to(root).as_posix(), path) for path in found if self._is_inside(path)]

    def _is_inside(self, path: Path) -> bool:
        return self._root is not None and path.is_file() and path.resolve().is_relative_to(self._root)

    def answer(self, request: Request) -> Response:
        """Serve a file by name, or `index.html` of a folder. Runs in a thread, since large pages take time."""
        if "name" not in request.path_params:  # relative URLs of a page need the slash
            return RedirectResponse(PREFIX) if self._files else _nothing()
        name = str(request.path_params["name"])
        path = self._files.get(f"{name}index.html" if name.endswith("/") or not name else name)
        if path is None and f"{name}/index.html" in self._files:
            return RedirectResponse(f"{PREFIX}{name}/")
        if path is None or not self._is_inside(path):  # the file may have been deleted, or replaced by a link
            return _nothing()
        page = path.read_text(encoding="utf-8", errors="replace") if path.suffix == ".html" else ""
        headers = {"cache-control": "no-cache", "content-security-policy": policy(request.headers["host"], page)}
        return FileResponse(path, media_type=TYPES[path.suffix], headers=headers)


def _nothing() -> Response:
    return PlainTextResponse("page not found in the documentation\n", 404)


def policy(host: str, page: str) -> str:
    """Return the Content-Security-Policy of a page of the site.

    Args:
        host: name of the server in the browser's request.
        page: HTML of the page; empty for other files.
    """
    own = "'self'" if host.startswith("[") else f"http://{host}{PREFIX}"  # a policy cannot name an IPv6 address
    found = inline_of(page)
    styles = [own, *map(digest, found.styles)]
    if found.attributes:
        styles += ["'unsafe-hashes'", *map(digest, found.attributes)]
    parts = {
        "default-src": ["'none'"],
        "script-src": [own, *map(digest, found.scripts)],
        "style-src": styles,
        "img-src": [own, "data:"],
        **{f"{kind}-src": [own] for kind in ("connect", "font", "media", "worker")},
        **{name: ["'none'"] for name in ("base-uri", "form-action", "frame-ancestors")},
    }
    return "; ".join(f"{name} {' '.join(dict.fromkeys(values))}" for name, values in parts.items())


def digest(text: str) -> str:
    """Return the source expression of an inline script or style."""
    found = hashlib.sha256(text.replace("\r\n", "\n").encode()).digest()
    return f"'sha256-{base64.b64encode(found).decode()}'"


def inline_of(page: str) -> Inline:
    """Return the inline scripts and styles of a page."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    return reader.found


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found = Inline([], [], [])
        self._texts: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect style attributes, and start collecting the text of scripts and styles."""
        given = dict(attrs)
        if given.get("style"):
            self.found.attributes.append(str(given["style"]))
        self._texts = None
        if tag == "style" or (tag == "script" and "src" not in given and given.get("type") != "application/json"):
            self._texts = self.found.styles if tag == "style" else self.found.scripts
            self._texts.append("")

    def handle_data(self, data: str) -> None:
        """Collect text of a script or style."""
        if self._texts is not None:
            self._texts[-1] += data

    def handle_endtag(self, tag: str) -> None:
        """Finish the text of a script or style."""
        self._texts = None
