"""A package index on the loopback whose answers a test writes."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NAME = "tiny_part-1.0.tar.gz"
Answer = tuple[int, str, bytes]


class Index:
    """A package index on the loopback; `answers` maps paths to what they give, one after the other.

    The body of a 302 is where it leads.
    """

    def __init__(self) -> None:
        self.answers: dict[str, list[Answer]] = {}
        self.asked: list[str] = []
        self.credentials: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                outer.credentials.append(self.headers.get("Authorization", ""))
                queue = outer.answers.get(self.path, [(404, "text/plain", b"no")])
                status, kind, body = queue.pop(0) if len(queue) > 1 else queue[0]
                self.send_response(status)
                self.send_header("Content-Type", kind)
                if status == 302:
                    self.send_header("Location", body.decode())
                self.send_header("Content-Length", str(len(body) * (2 if kind == "cut/short" else 1)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server.server_port}"
        self.url = f"http://{self.host}/simple"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def offers(self, data: bytes, sha256: str | None = None, name: str = NAME) -> None:
        """List one file, with its true hash or another."""
        digest = sha256 or hashlib.sha256(data).hexdigest()
        page = {"files": [{"filename": name, "url": f"../../files/{name}", "hashes": {"sha256": digest}}]}
        self.answers["/simple/tiny-part/"] = [(200, "application/vnd.pypi.simple.v1+json", json.dumps(page).encode())]
        self.answers[f"/files/{name}"] = [(200, "application/gzip", data)]
