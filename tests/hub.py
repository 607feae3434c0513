"""A small Hugging Face Hub on this machine: models and data sets from folders, and the faults of networks."""

import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

_API = re.compile(
    r"/api/(models|datasets)/(?P<name>[^/]+/[^/]+?)(/(?P<what>revision|tree|paths-info)/(?P<revision>[^/]+)(/(?P<below>.*))?)?"
)
_FILE = re.compile(r"/(datasets/)?(?P<name>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")


@dataclass
class Fault:
    """What goes wrong at addresses that end in ``at``, so many ``times``.

    The answer has another ``status`` (-1: there is none); a file has another ``content``, or breaks
    off after ``n_bytes``.
    """

    at: str
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    n_bytes: int | None = None
    content: bytes | None = None
    times: float = float("inf")


@dataclass
class Hub:
    """Folders by name and branch, and their commits; ``asked`` and ``ranges`` tell what clients asked for."""

    repositories: dict[str, dict[str, Path]] = field(default_factory=dict)
    commits: dict[Path, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)

    def put(self, name: str, folder: Path, *, branch: str = "main", commit: str = "c" * 40) -> None:
        """Publish a folder."""
        self.repositories.setdefault(name, {})[branch] = folder
        self.commits[folder] = commit

    @property
    def fetched(self) -> list[str]:
        """The names of the files that were sent."""
        return sorted(
            {
                found["path"]
                for each in self.asked
                if (found := _FILE.fullmatch(each.removeprefix("GET ")))
            }
        )

    def folder(self, name: str, revision: str) -> Path | None:
        """Return the folder of a branch or commit."""
        for branch, folder in self.repositories[name].items():
            if revision in (branch, self.commits[folder]):
                return folder
        return None


def _files(folder: Path) -> list[dict[str, Any]]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return [
        {
            "type": "file",
            "path": path.relative_to(folder).as_posix(),
            "size": path.stat().st_size,
            "oid": hashlib.sha1(path.read_bytes()).hexdigest(),
            **(
                {"lfs": {"oid": _sha256(path), "size": path.stat().st_size, "pointerSize": 100}}
                if _is_large(path)
                else {}
            ),
        }
        for path in paths
    ]


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _is_large(path: Path) -> bool:
    return path.suffix not in (".json", ".txt", ".md", ".csv")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub = Hub()

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(f"{self.command} {path}")
        self.hub.ranges += self.headers.get_all("Range", [])
        for fault in self.hub.faults:
            is_of_files = fault.n_bytes is not None or fault.content is not None
            if (
                path.endswith(fault.at)
                and fault.times > 0
                and not (is_of_files and self.command != "GET")
            ):
                fault.times -= 1
                break
        else:
            fault = Fault("")
        if fault.status < 0:
            self.close_connection = True
        elif fault.status:
            self.answer(b"", fault.status, fault.headers)
        elif found := _API.fullmatch(path):
            self.page(found, body)
        elif found := _FILE.fullmatch(path):
            self.file(found, fault)
        else:
            self.answer(b"", 404)

    def page(self, asked: re.Match[str], body: bytes) -> None:
        name, revision = asked["name"], asked["revision"] or "main"
        if name not in self.hub.repositories:
            self.answer(b"", 401)
            return
        folder = self.hub.folder(name, revision)
        if folder is None:
            self.answer(b"", 404, {"X-Error-Code": "RevisionNotFound"})
            return
        files = _files(folder)
        if asked["what"] == "tree" and not (folder / (asked["below"] or "")).is_dir():
            self.answer(b"", 404, {"X-Error-Code": "EntryNotFound"})
            return
        if asked["what"] == "tree":
            below = f"{asked['below']}/" if asked["below"] else ""
            value: Any = [each for each in files if each["path"].startswith(below)]
        elif asked["what"] == "paths-info":
            wanted = json.loads(body)["paths"]
            value = [each for each in files if each["path"] in wanted]
        else:
            names = [{"rfilename": each["path"]} for each in files]
            value = {
                "id": name,
                "sha": self.hub.commits[folder],
                "siblings": names,
                "private": False,
                "tags": [],
            }
        self.answer(json.dumps(value).encode(), headers={"Content-Type": "application/json"})

    def file(self, asked: re.Match[str], fault: Fault) -> None:
        if asked["name"] not in self.hub.repositories:
            self.answer(b"", 401)
            return
        folder = self.hub.folder(asked["name"], asked["revision"])
        path = None if folder is None else folder / asked["path"]
        if folder is None or path is None or not path.is_file():
            self.answer(b"", 404, {"X-Error-Code": "EntryNotFound"})
            return
        content = path.read_bytes() if fault.content is None else fault.content
        etag = _sha256(path) if _is_large(path) else hashlib.sha1(path.read_bytes()).hexdigest()
        headers = {
            "X-Repo-Commit": self.hub.commits[folder],
            "ETag": f'"{etag}"',
            "Accept-Ranges": "bytes",
        }
        start = int(re.findall(r"\d+", self.headers.get("Range", "bytes=0-"))[0])
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self.answer(content[start:], 206 if start else 200, headers, fault.n_bytes)

    def answer(
        self,
        content: bytes,
        status: int = 200,
        headers: dict[str, str] | None = None,
        n_bytes: int | None = None,
    ) -> None:
        """Send an answer, or its first bytes before the connection breaks."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[:n_bytes])
        if n_bytes is not None:
            self.close_connection = True


SERVER = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
"""The Hub of this process; it answers once a thread runs it."""
CLOCK = SimpleNamespace(**vars(time) | {"sleep": lambda _: None})
"""In place of the module ``time``: clients do not wait between attempts."""
ADDRESS = f"http://127.0.0.1:{SERVER.server_port}"


@contextmanager
def serving() -> Iterator[None]:
    """Answer in a thread while the block runs."""
    thread = threading.Thread(target=SERVER.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        SERVER.shutdown()
        thread.join()
