"""What two recordings ran on, and where it differs: the first thing to know before their times are compared."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from specanalyze.answers.run_values import of_the_run
from specanalyze.trace import Trace
from specanalyze.whole_number import whole_number

UNSET: Final = "unset"
"""Shown for a variable that the recording says was not set."""

TENSOR_PARALLEL: Final = ("tp_size", "tensor_parallel_size", "tp")
"""The server argument that says over how many GPUs each layer is split, in SGLang's and vLLM's spelling."""

GRAPH_SWITCHES: Final = ("disable_cuda_graph", "cuda_graph_backend_decode", "enforce_eager")
"""Server arguments that turn CUDA graphs of decoding off."""

PARALLEL_SIZES: Final = (
    TENSOR_PARALLEL,
    ("pp_size", "pipeline_parallel_size"),
    ("dp_size", "data_parallel_size"),
    ("ep_size", "expert_parallel_size"),
)
"""Server arguments that say how a model is spread over GPUs, each in its spellings."""

_ALWAYS_MATTER: Final = re.compile(
    r"(?:NCCL_(?!DEBUG).*|CUDA_.*|nccl\.(?:version|path)|gpu\.(?:model|count|links.*)|driver|cuda|torch|server\.(?:name|version)|"
    r"model_digest|device|clocks\.(?:power_limit_mw|sm_max_mhz)|server\.args\.(?:tp_size|tensor_parallel_size|tp|pp_size|pipeline_parallel_size|dp_size|data_parallel_size|"
    r"ep_size|expert_parallel_size|enable_expert_parallel|quantization|dtype|kv_cache_dtype|disable_custom_all_reduce|disable_cuda_graph|"
    r"cuda_graph_backend_decode|enforce_eager))"
)
"""Facts that change the speed of the same work: a baseline that differs in one of them is another machine's."""

_NO_FACTS: Final = re.compile(r"differs_by_rank.*|command_line|server\.args\.api_key")
"""Told by other facts (what was typed, by the arguments it was resolved to), or a secret."""

_MODEL: Final = ("server.args.model_path", "server.args.model", "model.name")
"""What says which model ran where a recording has no digest of it."""

_OF_A_SERVER: Final = ("SGLANG_", "VLLM_")
"""Variables that one server reads and the others do not know."""

_ORDER: Final = (
    r"NCCL_",
    r"nccl\.",
    r"CUDA_",
    r"gpu\.",
    r"driver|cuda|torch",
    r"server\.(?!args)",
    r"model",
    r"server\.",
)


@dataclass(frozen=True)
class Difference:
    """One fact that differs.

    Attributes:
        name: ``NCCL_PROTO``, ``nccl.version``, ``server.args.tp_size``.
        before, after: its value in each recording; ``unset`` for a variable that was not set, None where it was not recorded.
        matters: it changes the speed of the same work, so that one recording is no baseline of the other.
        of_the_run: the two are one setting under a name, port or path made anew for each run (see ``run_values``).
    """

    name: str
    before: str | None
    after: str | None
    matters: bool
    of_the_run: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {shown(self.before)} -> {shown(self.after)}"


def shown(value: str | None) -> str:
    """A value, or that it was not recorded."""
    return "not recorded" if value is None else value


def environment_of(trace: Trace) -> Mapping[str, Any]:
    """The environment of a recording in one layout (see ``canonical``); empty where it has none."""
    found = trace.metadata.get("environment")
    return canonical(found) if isinstance(found, Mapping) else {}


def canonical(environment: Mapping[str, Any]) -> dict[str, Any]:
    """The environment section in one layout, whoever wrote it; facts nobody knows are left out.

    Returns:
        gpu (model, count, links), driver, cuda, nccl (path, version, torch_version), torch, server (name, version, args),
        model_digest, variables, clocks (sm_mhz, sm_max_mhz, power_limit_mw: one a GPU), differs_by_rank, and whatever else
        was recorded, as it is. Arguments come from the server where its hooks told them, else from the command line.
    """
    known = {k: v for k, v in environment.items() if v is not None}
    gpu = known.pop("gpu", None)
    gpu = dict(gpu) if isinstance(gpu, Mapping) else {"model": gpu}
    gpu.setdefault("count", known.pop("gpu_count", None))
    if links := known.pop("links", None):
        gpu["links"] = sorted({_link(pair) for pair in links if isinstance(pair, Mapping)})
    known["gpu"] = {k: v for k, v in gpu.items() if v is not None}
    if isinstance(known.get("nccl"), str):
        known["nccl"] = {"version": known["nccl"]}
    server = known.pop("server", None)
    server = dict(server) if isinstance(server, Mapping) else {"name": server}
    server.setdefault("version", known.pop("server_version", None))
    args = known.pop("server_args", None)
    if "args" not in server:
        server["args"] = args if isinstance(args, Mapping) else _options(known.get("command_line"))
    known["server"] = {k: v for k, v in server.items() if v}
    model = known.pop("model", None)
    if isinstance(model, Mapping):
        known.setdefault("model_digest", model.get("config_digest"))
        known["model"] = {k: v for k, v in model.items() if k != "config_digest"}
    devices = [g for g in known.pop("gpus", None) or () if isinstance(g, Mapping)]
    if devices:
        fields = {"sm_mhz": "clock_sm", "sm_max_mhz": "clock_sm_max", "power_limit_mw": "power_limit"}
        known["clocks"] = {ours: [g.get(theirs) for g in devices] for ours, theirs in fields.items()}
    return {k: v for k, v in known.items() if v not in (None, {}, [])}


def _link(pair: Mapping[str, Any]) -> str:
    return "NVLink" if pair.get("nvlink") else str(pair.get("path") or "unknown path")


def _options(command_line: Any) -> dict[str, Any]:
    """``--tp-size 2 --disable-radix-cache`` -> tp_size, disable_radix_cache."""
    words = [str(w) for w in command_line] if isinstance(command_line, (list, tuple)) else []
    found: dict[str, Any] = {}
    for word, following in zip(words, [*words, "--"][1:], strict=True):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found[name.replace("-", "_")] = value if equals else True if following.startswith("--") else following
    return found


def facts(environment: Mapping[str, Any]) -> dict[str, str]:
    """The environment as flat facts: dotted names, variables under their own names, values as text.

    ``{"nccl": {"version": "2.28.9"}, "variables": {"NCCL_ALGO": "Ring"}}`` -> ``nccl.version``, ``NCCL_ALGO``.
    """
    flat: dict[str, str] = {}
    for name, value in _leaves(canonical(environment), ""):
        flat[name.removeprefix("variables.")] = value
    return {name: value for name, value in flat.items() if not _NO_FACTS.fullmatch(name)}


def _leaves(value: Any, name: str) -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        # One a GPU: how many there are is a fact of its own, and equal clocks of two GPUs are no other clocks than one's.
        values = dict.fromkeys(value) if name.startswith("clocks.") and len(set(map(str, value))) == 1 else value
        if value:
            yield name, ", ".join(str(v) for v in values)
    elif value is not None:
        yield name, str(value)


def variables(environment: Mapping[str, Any]) -> Mapping[str, str] | None:
    """Recorded environment variables; None where the recording does not know them."""
    found = environment.get("variables")
    return found if isinstance(found, Mapping) else None


def argument(environment: Mapping[str, Any], *names: str) -> Any:
    """The server argument of the first of the names (dotted where nested) that is recorded; None where none is.

    The collector writes vLLM's nested arguments under dotted names, a command line has them nested.
    """
    args = argument_section(environment)
    for name in names:
        value: Any = args.get(name)
        if value is None:
            value = args
            for part in name.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None


def tensor_parallel(trace: Trace) -> int | None:
    """GPUs that each layer is split over: the server's argument, else the recording's own count of ranks."""
    said = argument(environment_of(trace), *TENSOR_PARALLEL)
    known = whole_number(said)
    return known if known is not None else len(trace.sources) or None


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """Facts that differ between two environments, NCCL first, then what else matters, then the rest.

    A fact that only one recording has is no difference but unknown (see ``unknown``), except for variables: where both
    recorded their variables, one that is missing was not set. Values made anew for each run are left out (see ``run_differences``).
    """
    return [d for d in _all_differences(before, after) if not d.of_the_run]


def run_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """Facts that differ only in what is made anew for each run: ports, identifiers, names of shared memory, in order of their names."""
    return [d for d in _all_differences(before, after) if d.of_the_run]


def _all_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    a, b = facts(before), facts(after)
    known_a, known_b = variables(before), variables(after)
    digests = "model_digest" in a and "model_digest" in b
    two_servers = a.get("server.name") != b.get("server.name")
    found = []

    def add(name: str, one: str, other: str) -> None:
        made_anew = of_the_run(name, one, other)
        matters = bool(_ALWAYS_MATTER.fullmatch(name)) or (name in _MODEL and not digests)
        found.append(Difference(name, one, other, matters and not made_anew, made_anew))

    for name in sorted(a.keys() | b.keys()):
        one, other = a.get(name), b.get(name)
        if known_a is not None and known_b is not None and (name in known_a or name in known_b):
            one, other = one or UNSET, other or UNSET
        if two_servers and UNSET in (one, other) and name.startswith(_OF_A_SERVER):
            continue  # the other server does not know it
        if one is not None and other is not None and one != other:
            add(name, one, other)
    arguments = (argument_section(before), argument_section(after))
    if two_servers:
        # An argument that only one of two servers has is not unset in the other: it means nothing there.
        for names in PARALLEL_SIZES:
            one, other = (str(argument(of, *names) or "") for of in (before, after))
            if one and other and one != other and not any(d.name == f"server.args.{n}" for d in found for n in names):
                add(f"server.args.{names[0]}", one, other)
    elif all(arguments):
        # An argument without a value (null, or not there) was not given; where both told theirs, that is a difference to one that was.
        for name in sorted(n for n in a.keys() ^ b.keys() if n.startswith("server.args.")):
            one, other = a.get(name) or UNSET, b.get(name) or UNSET
            if one != other:
                add(name, one, other)
    return sorted(found, key=lambda d: (not d.name.lower().startswith("nccl"), not d.matters, _place(d.name), d.name))


def recorder_difference(before: Trace, after: Trace) -> list[Difference]:
    """How two recordings were made, as one difference ``recorder``: profiler, window lengths, stamps; empty where that agrees.

    A setting that only one recording tells is unknown and no difference.
    """
    one, other = (_recorder(trace) for trace in (before, after))
    differing = [name for name in one if name in other and one[name] != other[name]]
    if not differing:
        return []
    said = [", ".join(side[n] if n == "profiler" else f"{n} {side[n]}" for n in differing) for side in (one, other)]
    return [Difference("recorder", said[0], said[1], matters=False)]


def _recorder(trace: Trace) -> dict[str, str]:
    """Setting -> value as text; ``profiler`` for what read the kernels."""
    recording = trace.metadata.get("recording")
    settings = recording.get("settings") if isinstance(recording, Mapping) else None
    found = dict(settings) if isinstance(settings, Mapping) else {}
    if (cupti := found.pop("cupti", None)) is not None:
        found = {"profiler": "cupti-python" if cupti else "torch.profiler", **found}
    if isinstance(recording, Mapping) and recording.get("source") == "import" and recording.get("format"):
        found = {"profiler": f"{recording['format']}, imported", **found}
    return {name.replace("_", " "): str(value) for name, value in found.items() if value is not None}


def argument_section(environment: Mapping[str, Any]) -> Mapping[str, Any]:
    """All recorded server arguments; empty where there are none."""
    server = canonical(environment).get("server")
    args = server.get("args") if isinstance(server, Mapping) else None
    return args if isinstance(args, Mapping) else {}


def _place(name: str) -> int:
    return next((i for i, pattern in enumerate(_ORDER) if re.match(pattern, name)), len(_ORDER))


def unknown(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Facts that matter and that one of two recordings or both do not know, so that nobody can tell whether they agree."""
    a, b = facts(before), facts(after)
    if not a and not b:
        return ["everything"]
    known_a, known_b = variables(before), variables(after)
    names = []
    for name in sorted(a.keys() ^ b.keys()):
        is_variable = name in (known_a or {}) or name in (known_b or {})
        if is_variable and known_a is not None and known_b is not None:
            continue
        if name.startswith("server.args.") and argument_section(before) and argument_section(after):
            continue
        if _ALWAYS_MATTER.fullmatch(name):
            names.append(name)
    names = sorted(
        (n for n in names if n not in (known_a or {}) and n not in (known_b or {})), key=lambda n: (_place(n), n)
    )
    if known_a is None or known_b is None:
        names.insert(0, "environment variables")
    if not (argument_section(before) and argument_section(after)):
        names = [n for n in names if not n.startswith("server.args.")] + ["server arguments"]
    return names
