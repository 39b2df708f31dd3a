"""The `speccollect` commands. Heavy libraries are imported inside them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from speccollect import __version__
from speccollect.cli.options import (
    Backend,
    Folder,
    Force,
    Output,
    WindowsText,
    chosen_folder,
    prompt_of,
    window_settings,
)

app = typer.Typer(
    name="speccollect",
    help="Record a speculative worker from inside its server into one trace.parquet.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _build_once() -> None:
    """Before a recording: the compiled reader, so that no server is held while its events are read."""
    from speccollect.native.build import ensure

    ensure(lambda line: typer.echo(f"speccollect: {line}", err=True))


def _build_buffers() -> None:
    """The keeper of CUPTI's buffers alone: 0.3 s, where the other takes 20."""
    import contextlib

    from speccollect.native import cupti_library
    from speccollect.native.build import NotBuilt

    with contextlib.suppress(NotBuilt):  # the trace says so
        cupti_library.build()


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"speccollect {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Record a speculative worker from inside its server into one trace.parquet."""


@app.command(
    options_metavar="[OPTIONS] -- COMMAND...",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": ["--help"]},
)
def run(
    context: typer.Context,
    folder: Folder = None,
    nsys: Annotated[
        bool, typer.Option("--nsys", help="Run the server under Nsight Systems: phases as NVTX ranges.")
    ] = False,
    nsys_output: Annotated[str, typer.Option(help="Where Nsight Systems writes.")] = "speccollect",
    backend: Backend = "torch",
) -> None:
    """Start a server with the collector loaded.

    Example: speccollect run -- python -m sglang.launch_server --model-path ...
    """
    import os

    from speccollect.config import BACKEND_VARIABLE
    from speccollect.launch import launch, server_command
    from specschema.errors import UsageError

    window_settings("", backend=backend)
    server_command(context.args, nsys_output if nsys else None)  # refused before anything is compiled
    place = chosen_folder(folder)
    if place.exists() and not place.is_dir():
        raise UsageError(
            f"--dir {place} is no folder: ranks could announce themselves nowhere, and nothing would be recorded"
        )
    if backend == "cupti":  # graphs are captured long before anything is armed
        os.environ[BACKEND_VARIABLE] = backend
    _build_once()
    launch(context.args, place, nsys_output=nsys_output if nsys else None)


@app.command()
def request(
    url: Annotated[str, typer.Option(help="Address of the server.")] = "http://127.0.0.1:30000",
    prompt: Annotated[Optional[str], typer.Option(help="Prompt; the built-in long one by default.")] = None,  # noqa: UP045
    prompt_file: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Option(
            metavar="FILE", help="File with a prompt; may be given several times.", exists=True, dir_okay=False
        ),
    ] = None,
    input_ids: Annotated[
        int, typer.Option(min=0, help="Send this many token ids instead of text (servers without a tokenizer).")
    ] = 0,
    api: Annotated[str, typer.Option(help="auto, chat, completions or generate.")] = "auto",
    max_tokens: Annotated[int, typer.Option(min=1, help="New tokens of each request.")] = 1000,
    repeat: Annotated[int, typer.Option(min=1, help="Requests per prompt.")] = 1,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at a time.")] = 1,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    ignore_eos: Annotated[bool, typer.Option(help="Generate to --max-tokens whatever the model says.")] = False,
    api_key: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Key of the server; never recorded.", envvar="OPENAI_API_KEY", show_envvar=True),
    ] = None,
    windows: WindowsText = "",
    cpu_ops: Annotated[
        bool, typer.Option("--cpu-ops", help="Record CPU operators in the windows, too (dearer).")
    ] = False,
    backend: Backend = "torch",
    folder: Folder = None,
    ranks: Annotated[Optional[int], typer.Option(min=1, help="Ranks the server should have.")] = None,  # noqa: UP045
    timeout: Annotated[
        float, typer.Option(min=0, help="Seconds without progress before a rank or the server is given up.")
    ] = 120.0,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the ranks' own files.")] = False,
    output: Output = Path("trace.parquet"),
    force: Force = False,
) -> None:
    """Record a running server while it answers a long request. All ranks are merged into one trace."""
    from speccollect.cli.render import progress, show_session
    from speccollect.request.prompts import LONG_PROMPT
    from speccollect.request.prompts import input_ids as ids
    from speccollect.request.session import record_requests
    from speccollect.request.stream import find_endpoint, request_body
    from speccollect.trace.output_path import refuse_output
    from specschema.errors import UsageError

    refuse_output(output, force=force)
    if sum((prompt is not None, bool(prompt_file), input_ids > 0)) > 1:
        raise UsageError("give one of --prompt, --prompt-file and --input-ids")
    prompts: list[str | list[int]] = [LONG_PROMPT]
    if prompt is not None:
        prompts = [prompt]
    elif prompt_file:
        prompts = [prompt_of(path) for path in prompt_file]
    elif input_ids:
        prompts = [ids(input_ids)]
    settings = window_settings(windows, cpu_ops, backend)
    endpoint = find_endpoint(url, api, key=api_key, input_ids=input_ids > 0, timeout=timeout)
    bodies = [
        request_body(endpoint, text, max_tokens, ignore_eos=ignore_eos, temperature=temperature)
        for _ in range(repeat)
        for text in prompts
    ]
    _build_once()
    with progress(max_tokens * len(bodies)) as on_tokens:
        session = record_requests(
            chosen_folder(folder),
            endpoint,
            bodies,
            output,
            windows=settings,
            concurrency=concurrency,
            force=force,
            keep=keep,
            timeout=timeout,
            expected_ranks=ranks,
            on_tokens=on_tokens,
        )
    show_session(session)


@app.command()
def build(
    again: Annotated[bool, typer.Option("--again", help="Compile it even if it is there.")] = False,
) -> None:
    """Compile the reader of the profiler's events, and the keeper of CUPTI's buffers.

    For the torch that is installed here; run and request do it, too.
    """
    from speccollect.native import cupti_library
    from speccollect.native.build import NotBuilt
    from speccollect.native.build import build as compile_it
    from specschema.errors import TraceError

    try:
        typer.echo(f"{compile_it(again=again)}")
        typer.echo(f"{cupti_library.build(again=again)}")
    except NotBuilt as error:
        raise TraceError(
            f"no compiled reader: {error}; recording works without it, each window holds the server longer"
        ) from error


@app.command()
def status(folder: Folder = None) -> None:
    """Show the ranks that announced themselves, and what they do."""
    from speccollect.cli.render import show_status
    from speccollect.control.status import read_statuses
    from speccollect.control.word import read_command

    place = chosen_folder(folder)
    show_status(place, read_command(place), read_statuses(place))


@app.command()
def arm(
    folder: Folder = None,
    windows: WindowsText = "",
    cpu_ops: Annotated[
        bool, typer.Option("--cpu-ops", help="Record CPU operators in the windows, too (dearer).")
    ] = False,
    backend: Backend = "torch",
) -> None:
    """Begin a recording by hand: every rank arms at its next step. Best while the server is idle.

    Exit code 1: no rank has announced itself there; the recording is armed all the same, for ranks that do so later.
    """
    from speccollect.control.status import nobody
    from speccollect.control.word import arm as write

    place = chosen_folder(folder)
    command = write(place, window_settings(windows, cpu_ops, backend))
    typer.echo(f"recording {command.recording} is armed in {place}; end it with: speccollect disarm --dir {place}")
    if alone := nobody(place):
        typer.echo(f"speccollect: {alone}", err=True)
        raise typer.Exit(1)


@app.command()
def disarm(
    folder: Folder = None,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for a rank that makes no progress.")] = 60.0,
) -> None:
    """End the recording. It waits until every rank has closed its files."""
    from speccollect.control.wait import wait_for_ranks
    from speccollect.control.word import disarm as write
    from speccollect.control.word import read_command, recording_folder
    from specschema.errors import TraceError

    place = chosen_folder(folder)
    before = read_command(place)
    if not before.armed:
        raise TraceError(
            f"nothing is being recorded in {place}: "
            + (
                f"the last recording, number {before.recording}, has ended"
                if before.recording
                else "is it this server's folder?"
            )
        )
    command = write(place)
    for line in wait_for_ranks(place, command.recording, timeout):
        typer.echo(line, err=True)
    written = any(recording_folder(place, command.recording).glob("*"))
    typer.echo(
        f"recording {command.recording} has ended"
        + (
            f"; merge it with: speccollect merge --dir {place} -o trace.parquet"
            if written
            else ": no rank has written a file, so there is nothing to merge"
        )
    )


@app.command()
def merge(
    folder: Folder = None,
    recording: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="Number of the recording; the last one by default."),
    ] = None,
    ranks: Annotated[Optional[int], typer.Option(min=1, help="Ranks the server should have.")] = None,  # noqa: UP045
    output: Output = Path("trace.parquet"),
    force: Force = False,
) -> None:
    """Merge the finished files of all ranks into one trace."""
    from speccollect.cli.render import show_merged
    from speccollect.trace.merge import merge as write
    from speccollect.trace.output_path import refuse_output

    refuse_output(output, force=force)
    show_merged(write(chosen_folder(folder), output, recording=recording, force=force, expected_ranks=ranks))


@app.command()
def demo(
    output: Output = Path("trace.parquet"),
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel ranks.")] = 1,
    steps: Annotated[int, typer.Option(min=1, help="Draft steps.")] = 2,
    batch_size: Annotated[int, typer.Option(min=1, help="Requests at a time.")] = 1,
    max_tokens: Annotated[int, typer.Option(min=1, help="New tokens of each request.")] = 200,
    layers: Annotated[int, typer.Option(help="Layers of the target.")] = 8,
    hidden: Annotated[int, typer.Option(help="Hidden size of the target.")] = 256,
    experts: Annotated[int, typer.Option(help="Experts per layer.")] = 16,
    top_k: Annotated[int, typer.Option(help="Experts per token.")] = 4,
    eager: Annotated[bool, typer.Option("--eager", help="No CUDA graphs.")] = False,
    device: Annotated[str, typer.Option(help="auto, cuda or cpu.")] = "auto",
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the weights and prompts.")] = 0,
    speculate: Annotated[bool, typer.Option("--speculate/--baseline", help="With drafts, or plain decoding.")] = True,
    windows: WindowsText = "",
    force: Force = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
) -> None:
    """Record a small speculative engine of our own, on GPUs or any CPU."""
    from speccollect.cli.render import show_merged, show_trace
    from speccollect.trace.output_path import refuse_output

    refuse_output(output, force=force)  # before torch, which may be missing, is
    if window_settings(windows).cupti:
        _build_buffers()
    from speccollect.demo.main import run_demo

    result = run_demo(
        output,
        tp=tp,
        steps=steps,
        batch_size=batch_size,
        max_tokens=max_tokens,
        layers=layers,
        hidden=hidden,
        experts=experts,
        top_k=top_k,
        eager=eager,
        device=device,
        seed=seed,
        speculate=speculate,
        windows=windows or None,
        force=force,
    )
    if not quiet and result.merged is not None:
        show_merged(result.merged)
        show_trace(output)
