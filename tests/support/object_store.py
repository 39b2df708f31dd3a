"""A real S3 server on this machine (moto's), and a way to lay files into it."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

BUCKET = "recordings"


@contextlib.contextmanager
def serving(log: Path) -> Iterator[dict[str, str]]:
    """The environment in which readers find the server; it has the empty bucket BUCKET.

    Args:
        log: file that gets one line a request.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = f"from moto.server import main; main(['-H', '127.0.0.1', '-p', '{port}'])"
    environment = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with log.open("wb") as said:
        server = subprocess.Popen([sys.executable, "-c", code], stdout=said, stderr=said)
    try:
        until = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < until
            time.sleep(0.1)
        store(environment).create_dir(BUCKET)
        yield environment
    finally:
        server.kill()
        server.wait()


def asked_of(log: Path, name: str) -> list[str]:
    """Methods and answers of the requests for one object so far, as in ``"GET 206"``: oldest first.

    The server writes a request's line before it sends the answer, in colours or not by what else is installed.
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text())
    return [
        " ".join(found) for found in re.findall(rf'"([A-Z]+) /{BUCKET}/{re.escape(name)} HTTP/[0-9.]+" ([0-9]+)', plain)
    ]


def store(environment: Mapping[str, str]) -> Any:
    """Its file system, for writing."""
    from pyarrow.fs import S3FileSystem

    return S3FileSystem(
        access_key=environment["AWS_ACCESS_KEY_ID"],
        secret_key=environment["AWS_SECRET_ACCESS_KEY"],
        region=environment["AWS_REGION"],
        endpoint_override=environment["AWS_ENDPOINT_URL"].split("://")[1],
        scheme="http",
        allow_bucket_creation=True,
    )


def put(environment: Mapping[str, str], name: str, data: bytes) -> str:
    """Lay one object; its address."""
    with store(environment).open_output_stream(f"{BUCKET}/{name}", compression=None) as out:
        out.write(data)
    return f"s3://{BUCKET}/{name}"
