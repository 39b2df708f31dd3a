"""Puts wrappers around methods of a server that is not ours, and takes them off again. No file is patched on disk.

A ``HookPoint`` names a method or function, the releases that have it, and the parameters its wrapper reads. ``install``
wraps what is imported already and waits for the rest through wrapt's post-import hooks, so that nothing is imported
earlier than the server would and one table serves every process and release. What a process never imports is never
touched. (SGLang has a hook registry of its own; it imports every target in every process, the HTTP server included,
can't be undone, and exists from 0.5.11 on only. So this one is used for all releases; the registry's hooks compose.)

The promise to the server: the original runs exactly once whatever our code does, its result and its exceptions pass
through untouched, and an exception of ours goes to ``recorder.fail``, which disarms. Wrappers run only while armed (one
that looks at a server's start excepted), and never while a CUDA graph is being captured.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any, Final, Protocol

import wrapt
from packaging.specifiers import SpecifierSet

from speccollect.hooks.bracket import Bracket, as_wrapper, bracketed
from speccollect.hooks.guard import Wrapper, capturing, guarded, switched
from speccollect.hooks.stamps import Weave, woven

logger: Final = logging.getLogger("speccollect")

__all__ = [
    "HookPoint",
    "Installed",
    "Recorder",
    "Wrapper",
    "argument",
    "capturing",
    "install",
    "lacking_parameters",
    "phase",
]


class Recorder(Protocol):
    """What hook points need of the recorder; ``speccollect.rank.recorder`` has the real one."""

    armed: bool
    stamps: list[int]
    watched: bool

    def poll(self) -> None:
        """Reads the control word: arms or disarms. Called where the server's loop comes by, idle or not."""

    def identify(
        self,
        *,
        rank: int | None = None,
        coordinates: Mapping[str, int] | None = None,
        server: str | None = None,
        server_version: str | None = None,
        server_args: Mapping[str, Any] | None = None,
        model_path: str | None = None,
    ) -> None:
        """What the engine knows of this process; once, at its start."""

    def begin_cycle(
        self,
        mode: str,
        batch_size: int,
        draft_tokens: int,
        request_ids: Sequence[str],
        context_tokens: int | None = None,
    ) -> int:
        """Opens a cycle and returns its number, or -1. ``mode`` is one of ``specschema.phases.CYCLE_MODES``."""

    def end_cycle(self, cycle: int, *, graph_batch_size: int | None = None) -> None:
        """Closes the cycle; ``graph_batch_size`` is null when the forward ran eagerly."""

    def begin_phase(self, name: str) -> int:
        """Opens a phase or sub-phase and returns a token for ``end_phase``."""

    def end_phase(self, token: int) -> None: ...

    def enter_range(self, name: str) -> None:
        """The range of a phase whose stamps the hook wrote into ``stamps``; to be called where ``watched`` says so."""

    def leave_range(self) -> None: ...

    def accept(
        self, cycle: int, accept_lengths: Sequence[int | None], accepted_draft_tokens: Sequence[int | None] | None
    ) -> None:
        """Tokens committed for each request of the cycle (rule D8), and the verifier's own count of accepted drafts."""

    def request_finished(self, request_id: str, prompt_tokens: int, completion_tokens: int) -> None: ...

    def fail(self, where: str, error: BaseException) -> None:
        """Logs once and disarms. Never raises."""


@dataclass(frozen=True)
class HookPoint:
    """One method or function of a server, and what to wrap it in."""

    module: str
    """Module that defines it."""
    qualname: str
    """``Class.method`` or ``function``."""
    wrapper: Callable[[Any], Wrapper | Bracket | Weave]
    """Makes the wrapper, the bracket or the woven hook for a recorder."""
    versions: str = ""
    """PEP 440 specifier of the releases that have it; empty: all."""
    parameters: tuple[str, ...] = ()
    """Parameters that the wrapper reads by name."""
    polls: bool = False
    """Whether the recorder reads its control word here first; a woven hook does so itself."""
    always: bool = False
    """Whether the wrapper runs also while not armed: for what a server does once, at its start."""
    optional: bool = False
    """Whether some builds of these releases lack it, so that its absence is worth no warning."""

    @property
    def name(self) -> str:
        return f"{self.module}.{self.qualname}"

    def covers(self, version: str | None) -> bool:
        """Whether ``version`` has this point. An unknown version (None) may have any: the target itself decides."""
        return version is None or SpecifierSet(self.versions).contains(version, prereleases=True)


@dataclass
class Installed:
    """What became of each hook point, by name. ``pending`` ones wait for their module to be imported."""

    patched: list[str] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """Other releases' points."""
    missing: list[str] = field(default_factory=list)
    """Points that this release should have: the module is there, the target or a parameter is not; with the reason."""
    _bindings: list[_Binding] = field(default_factory=list, repr=False)
    _removed: bool = False

    def remove(self) -> None:
        """Puts every original back, last patched first; modules imported later stay as they are."""
        self._removed = True
        while self._bindings:
            self._bindings.pop().undo()
        self.patched.clear()
        self.pending.clear()


@dataclass
class _Binding:
    """One attribute that was replaced."""

    owner: Any
    attribute: str
    original: Any
    replacement: Any
    inherited: bool

    def undo(self) -> None:
        if isinstance(self.owner, ModuleType):  # modules imported since may have bound the wrapper by name
            for module, name in _bound_by_name(self.owner, self.replacement):
                setattr(module, name, self.original)
        if vars(self.owner).get(self.attribute) is not self.replacement:
            return  # somebody patched over us: taking theirs away would be worse than staying
        if self.inherited:
            delattr(self.owner, self.attribute)
        else:
            setattr(self.owner, self.attribute, self.original)


def install(points: Iterable[HookPoint], recorder: Any, *, version: str | None) -> Installed:
    """Wraps every point that this release has, now or when its module is imported.

    Args:
        points: hook points; those of other releases are skipped.
        recorder: passed to each point's ``wrapper``.
        version: the server's release; None when unknown: then every point is tried, and absence is no news.

    Returns:
        What was patched, is pending, skipped or missing; ``remove()`` undoes it all.
    """
    installed = Installed()
    for point in points:
        if not point.covers(version):
            installed.skipped.append(point.name)
            continue
        installed.pending.append(point.name)
        quiet = point.optional or version is None
        patch = functools.partial(_patch_when_imported, point, recorder, installed, quiet)
        wrapt.register_post_import_hook(patch, point.module)
    return installed


def _patch_when_imported(
    point: HookPoint, recorder: Any, installed: Installed, quiet: bool, module: ModuleType
) -> None:
    """Post-import hook. Must not raise: an exception here would fail the server's import."""
    if installed._removed:
        return
    if point.name in installed.pending:
        installed.pending.remove(point.name)
    try:
        reason = _patch(point, recorder, installed, module)
    except Exception as error:  # noqa: BLE001  the server's module may be anything; serving goes on without this point
        reason = f"{type(error).__name__}: {error}"
    if reason is None:
        installed.patched.append(point.name)
    elif quiet:
        installed.skipped.append(point.name)
    else:
        installed.missing.append(f"{point.name}: {reason}")
        logger.warning("speccollect: %s can't be hooked: %s", point.name, reason)


def _patch(point: HookPoint, recorder: Any, installed: Installed, module: ModuleType) -> str | None:
    """Replaces the target and its from-imported copies; returns why not, or None."""
    owner: Any = module
    *classes, attribute = point.qualname.split(".")
    for part in classes:
        owner = getattr(owner, part, None)
        if owner is None:
            return f"no {part}"
    original = inspect.getattr_static(owner, attribute, None)
    if original is None:
        return f"no {attribute}"
    lacking = lacking_parameters(getattr(owner, attribute), point.parameters)
    if lacking:
        return f"no parameter {', '.join(lacking)}"
    replacement = _replacement(point, original, recorder, method=bool(classes))
    inherited = bool(classes) and attribute not in vars(owner)
    _bind(installed, owner, attribute, original, replacement, inherited)
    if not classes:
        for other, name in _bound_by_name(module, original):
            _bind(installed, other, name, original, replacement, False)
    return None


def _replacement(point: HookPoint, original: Any, recorder: Any, *, method: bool) -> Any:
    """What stands in the target's place."""
    wrapper = point.wrapper(recorder)
    if isinstance(wrapper, Weave):
        return woven(original, wrapper, recorder, point.name, method=method)
    plain = type(original) is FunctionType and not point.always
    if isinstance(wrapper, Bracket):
        if plain:
            return bracketed(original, wrapper, recorder, point.name, method=method, polls=point.polls)
        wrapper = as_wrapper(wrapper)
    guard = guarded(point.name, wrapper, recorder, polls=point.polls, always=point.always)
    if plain and not point.polls:
        return switched(original, guard, recorder, method=method)
    return wrapt.FunctionWrapper(original, guard)


def _bind(installed: Installed, owner: Any, attribute: str, original: Any, replacement: Any, inherited: bool) -> None:
    setattr(owner, attribute, replacement)
    installed._bindings.append(_Binding(owner, attribute, original, replacement, inherited))


def lacking_parameters(function: Callable[..., Any], parameters: Sequence[str]) -> list[str]:
    """Those of ``parameters`` that the function doesn't take by name (a ``**kwargs`` doesn't count as taking them)."""
    if not parameters:
        return []
    known = inspect.signature(function).parameters
    return [name for name in parameters if name not in known]


def _bound_by_name(module: ModuleType, function: Any) -> list[tuple[ModuleType, str]]:
    """Other modules of the same top package that hold the function under a name (``from module import function``)."""
    package = module.__name__.split(".")[0]
    found = []
    for name, other in list(sys.modules.items()):
        if other is None or other is module or not (name == package or name.startswith(package + ".")):
            continue
        names = getattr(other, "__dict__", None)
        if isinstance(names, Mapping):
            found += [(other, key) for key, value in list(names.items()) if value is function]
    return found


def phase(name: str) -> Callable[[Any], Wrapper]:
    """Factory of wrappers that record the call as the phase or sub-phase ``name``."""

    def factory(recorder: Any) -> Wrapper:
        def wrapper(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            token = recorder.begin_phase(name)
            try:
                return wrapped(*args, **kwargs)
            finally:
                recorder.end_phase(token)

        return wrapper

    return factory


def argument(name: str, position: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The argument ``name`` of a wrapped call, given by keyword or at ``position`` (``self`` not counted).

    Raises:
        LookupError: the caller gave neither.
    """
    if name in kwargs:
        return kwargs[name]
    if position < len(args):
        return args[position]
    raise LookupError(f"the caller passed no {name}")
