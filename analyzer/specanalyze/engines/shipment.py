"""A recording on its way to other processes, and what one rank of it came to there."""

from __future__ import annotations

import itertools
import os
import pickle
from dataclasses import dataclass, replace
from typing import Any

from specanalyze.engines.engine import Call
from specanalyze.trace import Trace
from specschema.errors import SpecError

_numbers = itertools.count()


@dataclass(frozen=True)
class Shipment:
    """An opened recording, pickled whole: sources and warnings stay connected, and a worker opens nothing again.

    Attributes:
        name: unique among all shipments of this machine.
        content: the pickled ``Trace``.
    """

    name: str
    content: bytes

    @staticmethod
    def of(trace: Trace) -> Shipment:
        content = pickle.dumps(replace(trace, engine=None), protocol=pickle.HIGHEST_PROTOCOL)
        return Shipment(f"{os.getpid()}-{next(_numbers)}", content)

    def unpacked(self) -> Trace:
        trace = pickle.loads(self.content)
        assert isinstance(trace, Trace)
        return trace


@dataclass
class Outcome:
    """What one rank came to.

    Attributes:
        result: what the call returned.
        warnings: lines that reading brought up.
        error: what is wrong with the data, where the call said so instead.
    """

    result: Any = None
    warnings: tuple[str, ...] = ()
    error: SpecError | None = None

    def get(self, trace: Trace) -> Any:
        """The result; its warnings go to the recording's.

        Raises:
            SpecError: what the call raised.
        """
        trace.warnings.extend(line for line in self.warnings if line not in trace.warnings)
        if self.error is not None:
            raise self.error
        return self.result


def perform(trace: Trace, place: int, call: Call) -> Outcome:
    """Work on one rank of a recording that has arrived here; the recording is left as it came."""
    known = len(trace.warnings)
    outcome = Outcome()
    try:
        outcome.result = call(trace.sources[place], trace)
    except SpecError as error:
        outcome.error = error
    outcome.warnings = tuple(trace.warnings[known:])
    del trace.warnings[known:]
    return outcome
