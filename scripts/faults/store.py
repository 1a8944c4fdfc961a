"""A local HTTP server of a folder whose answers fail by plan."""

import http.server
import os
import re
import threading
import time


class Server(http.server.ThreadingHTTPServer):
    """Serves `folder`. The plan gives, by the number of the request from 0, one of `429`, `500`, `half`,
    `other`, `slow` and `cut`; requests that it does not have are answered well. `always` is for all of them
    on files other than the index."""

    daemon_threads = True

    def __init__(self, folder):
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.port = folder, self.server_address[1]
        self.plan, self.always, self.requests = {}, None, 0
        self.guard = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def reset(self, plan=(), always=None):
        with self.guard:
            self.plan, self.always, self.requests = dict(plan), always, 0

    def next_fault(self, path):
        with self.guard:
            number, self.requests = self.requests, self.requests + 1
        return self.plan.get(number) or (None if path.endswith("index.json") else self.always)

    def handle_error(self, request, client_address):
        pass  # The client closed the connection, which is part of the test.


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def refuse(self, status):
        self.send_response(status)
        if status == 429:
            self.send_header("Retry-After", "0")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def answer(self, body):
        fault = self.server.next_fault(self.path)
        if fault in ("429", "500"):
            return self.refuse(int(fault))
        if fault == "cut":
            self.close_connection = True
            return None
        path = os.path.join(self.server.folder, self.path.lstrip("/"))
        if not os.path.isfile(path):
            return self.refuse(404)
        with open(path, "rb") as file:
            content = file.read()
        first, last = 0, len(content) - 1
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked:
            first, last = int(asked[1]), min(int(asked[2] or last), last)
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        self.send_header("Accept-Ranges", "bytes")
        part = content[first:last + 1]
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if not body:
            return None
        if fault == "slow":
            time.sleep(0.5)
        if fault == "half":
            part, self.close_connection = part[: len(part) // 2], True
        if fault == "other":
            part = bytes(byte ^ 0x5A for byte in part)
        self.wfile.write(part)
        return None
