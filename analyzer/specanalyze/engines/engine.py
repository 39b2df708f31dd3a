"""One function over all ranks of recordings, results in order, wherever they are worked out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from specschema.errors import SpecError

if TYPE_CHECKING:
    from specanalyze.trace import RankSource, Trace

P = ParamSpec("P")
R = TypeVar("R")


class WorkerError(SpecError):
    """A process that worked on a rank is gone; the data may be fine."""


@dataclass(frozen=True)
class Call:
    """What is done with each rank: ``function(source, trace, *arguments, **options)``, small in what it returns.

    The function stands at the top of a module, so that another process finds it; the arguments can be pickled.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()

    def __call__(self, source: RankSource, trace: Trace) -> Any:
        return self.function(source, trace, *self.arguments, **dict(self.options))


@dataclass(frozen=True)
class Unit:
    """One rank of one recording: ``trace.sources[place]``."""

    trace: Trace
    place: int

    @property
    def source(self) -> RankSource:
        return self.trace.sources[self.place]


class Engine(Protocol):
    """Does the work of ranks."""

    def run(self, units: Sequence[Unit], call: Call) -> Iterator[Any]:
        """The call's result for each unit, in their order; what reading brings up is added to each trace's ``warnings``.

        Raises:
            SpecError: the first one, in order of the units, that the call raises.
            WorkerError: a process ended in the middle.
        """
        ...

    def progress(self, done: int, total: int) -> None:
        """Tell whoever opened this engine's recording how many bytes of it are read."""
        ...


def here(units: Sequence[Unit], call: Call) -> Iterator[Any]:
    """One rank after another in this process; nothing holds one while the next is read."""
    for unit in units:
        yield call(unit.source, unit.trace)


def each_rank(
    trace: Trace, function: Callable[Concatenate[RankSource, Trace, P], R], *args: P.args, **kwargs: P.kwargs
) -> Iterator[R]:
    """``function(source, trace, ...)`` for each rank of a recording, by the recording's engine, results in order of rank.

    Raises:
        TraceError: the recording has no rank.
    """
    return _grouped([trace], Call(function, args, tuple(kwargs.items())))[0]


def ranks_of(
    traces: Sequence[Trace],
    function: Callable[Concatenate[RankSource, Trace, P], R],
    *args: P.args,
    **kwargs: P.kwargs,
) -> list[Iterator[R]]:
    """As ``each_rank``, for several recordings at once: one iterator each, to be exhausted in this order."""
    return cast(list[Iterator[R]], _grouped(traces, Call(function, args, tuple(kwargs.items()))))


def _grouped(traces: Sequence[Trace], call: Call) -> list[Iterator[Any]]:
    for trace in traces:
        trace.refuse_empty()
    units = [Unit(trace, place) for trace in traces for place in range(len(trace.sources))]
    engine = next((trace.engine for trace in traces if trace.engine is not None), None)
    results = here(units, call) if engine is None else engine.run(units, call)
    return [islice(results, len(trace.sources)) for trace in traces]
