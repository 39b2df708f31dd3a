"""A small HTTP server with a real recorder behind it: streams tokens as SGLang's /generate and as OpenAI's API do.

usage: streaming_server.py PORT_FILE [--api-key KEY]; it stands for an engine, so that the driver meets real sockets,
real chunks and a real rank. Each cycle commits two tokens in one chunk.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from typing import Any

from speccollect.rank.recorder import get_recorder

KEY = sys.argv[3] if len(sys.argv) > 3 else None
TEXT = os.environ.get("STREAMED_TEXT", "x ")
work: SimpleQueue[tuple[str, int, SimpleQueue[int]]] = SimpleQueue()


def scheduler() -> None:
    """The rank's loop: one request after another; polls while idle, as a server's loop does."""
    recorder = get_recorder()
    while True:
        recorder.poll()
        if work.empty():
            time.sleep(0.005)
            continue
        request, wanted, chunks = work.get()
        cycle = recorder.begin_cycle("prefill", 1, 0, [request])
        with recorder.phase("prefill"):
            time.sleep(0.002)
        recorder.end_cycle(cycle)
        done = 1
        chunks.put(done)
        while done < wanted:
            cycle = recorder.begin_cycle("speculative", 1, 2, [request], 7 + done)
            with recorder.phase("draft"):
                pass
            with recorder.phase("verify"):
                time.sleep(0.002)
            recorder.end_cycle(cycle)
            committed = min(2, wanted - done)
            done += committed
            recorder.accept(cycle, [committed], [1])
            chunks.put(done)
        recorder.request_finished(request, 7, done)
        chunks.put(-1)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Quiet."""

    def refused(self) -> bool:
        if KEY is not None and self.headers.get("Authorization") != f"Bearer {KEY}":
            self.answer(401, {"error": "who are you"})
            return True
        return False

    def answer(self, status: int, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.refused():
            return
        if self.path == "/v1/models":
            self.answer(200, {"data": [{"id": "small"}]})
        elif self.path == "/get_model_info" and os.environ.get("AS_SGLANG") == "1":
            self.answer(200, {"model_path": "small"})
        else:
            self.answer(404, {})

    def do_POST(self) -> None:
        if self.refused():
            return
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body.get("prompt") == "fail":
            self.answer(400, {"error": {"message": "no such thing"}})
            return
        native = self.path == "/generate"
        wanted = body["sampling_params"]["max_new_tokens"] if native else body["max_tokens"]
        request = f"r{time.monotonic_ns()}"
        chunks: SimpleQueue[int] = SimpleQueue()
        work.put((request, wanted, chunks))
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        done = 0
        while (tokens := chunks.get()) >= 0:
            done = tokens
            self.send(self.event(native, request, tokens, body))
        if not native:
            usage = {"prompt_tokens": 7, "completion_tokens": done}
            self.send({"id": request, "choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def event(self, native: bool, request: str, tokens: int, body: dict[str, Any]) -> dict[str, Any]:
        if native:
            meta = {"id": request, "prompt_tokens": 7, "completion_tokens": tokens}
            return {"output_ids": [1] * tokens, "meta_info": meta}
        text = {"delta": {"content": TEXT}} if "messages" in body else {"text": TEXT}
        return {"id": request, "choices": [text]}

    def send(self, event: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.flush()


if __name__ == "__main__":
    threading.Thread(target=scheduler, daemon=True).start()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with open(sys.argv[1] + ".tmp", "w") as file:
        file.write(str(server.server_address[1]))
    os.replace(sys.argv[1] + ".tmp", sys.argv[1])
    server.serve_forever()
