"""What a recording needs, done before it begins.

First calls hold the interpreter for tens of milliseconds each. A cycle takes five, so they must be over before the first
one is measured: a thread makes them when the rank announces itself, and arming waits for it. It imports nothing: a
process that forks meanwhile would leave its child with half a module.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from speccollect.environment.fingerprint import environment
from speccollect.parts.part_file import writer_options
from specschema.events import EVENT_SCHEMA

logger = logging.getLogger("speccollect")

WAIT_SECONDS: Final = 10.0


class Preload(threading.Thread):
    """Reads the facts about this process and makes Arrow's first write."""

    def __init__(self) -> None:
        super().__init__(name="speccollect-preload", daemon=True)

    def run(self) -> None:
        try:
            environment({})
            with pq.ParquetWriter(pa.BufferOutputStream(), EVENT_SCHEMA, **writer_options()) as writer:
                writer.write_table(EVENT_SCHEMA.empty_table())
        except Exception:  # the recording tries again, and then it counts
            logger.debug("preloading failed", exc_info=True)
