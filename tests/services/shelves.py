"""Stores for large results: a folder, and a bucket of a server on loopback that speaks S3. Looked at from outside."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol
from urllib.parse import quote, unquote
from urllib.request import Request, urlopen
from xml.etree import ElementTree as ET

# In a process of its own: its libraries' warnings are not ours to mend. It ends with its standard input.
_SERVE = """
import sys
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""

_ANYBODY = "AWS4-HMAC-SHA256 Credential=anybody/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"


class Shelf(Protocol):
    """A store: its URL as FENCEPOST_BLOBS has it, and what lies in it by path."""

    @property
    def url(self) -> str: ...
    def objects(self) -> dict[str, bytes]: ...
    def write(self, path: str, data: bytes) -> None: ...
    def remove(self, path: str) -> None: ...


class Folder:
    """A `file://` store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = root.as_uri()

    def objects(self) -> dict[str, bytes]:
        files = (path for path in self.root.rglob("*") if path.is_file() and path.name != ".fencepost")
        return {str(path.relative_to(self.root)): path.read_bytes() for path in files}

    def write(self, path: str, data: bytes) -> None:
        (self.root / path).write_bytes(data)

    def remove(self, path: str) -> None:
        (self.root / path).unlink()


class Bucket:
    """An `s3://` store with a prefix; the requests here are plain HTTP, whose signature this server never checks."""

    def __init__(self, endpoint: str) -> None:
        self._bucket = f"results-{uuid.uuid4().hex[:10]}"
        self._endpoint = endpoint
        self.url = f"s3://{self._bucket}/tool/results"
        self._ask("PUT", "")

    def objects(self) -> dict[str, bytes]:
        prefix = "tool/results/"
        listing = ET.fromstring(self._ask("GET", f"?list-type=2&prefix={prefix}"))
        keys = [key.text or "" for key in listing.iterfind(".//{*}Key")]
        return {key.removeprefix(prefix): self._ask("GET", f"/{quote(key)}") for key in keys if ".fencepost" not in key}

    def write(self, path: str, data: bytes) -> None:
        self._ask("PUT", f"/tool/results/{quote(path)}", data)

    def remove(self, path: str) -> None:
        self._ask("DELETE", f"/tool/results/{quote(path)}")

    def _ask(self, method: str, path: str, data: bytes | None = None) -> bytes:
        url = f"{self._endpoint}/{self._bucket}{path}"
        with urlopen(Request(url, data, {"Authorization": _ANYBODY}, method=method)) as answer:
            found: bytes = answer.read()
            return found


@contextmanager
def s3_server() -> Iterator[str]:
    """The endpoint of a running server."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", _SERVE], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.kill()


def variables(endpoint: str) -> dict[str, str]:
    """What a client needs to know: path-style is its default, and the credentials are nobody's."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
    }


def path_of(uri: str) -> str:
    """The path within its store of what a reference names: the org's folder and the hash."""
    return unquote("/".join(uri.split("/")[-2:]))
