"""One streamed request to a server: OpenAI chat or completions, or SGLang's /generate; standard library only."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from speccollect.request.latency import Streamed
from specschema.errors import TraceError, UsageError

APIS: Final = ("auto", "chat", "completions", "generate")
_PATHS: Final = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "generate": "/generate"}
_INFO_PATHS: Final = ("/get_model_info", "/model_info")


@dataclass(frozen=True)
class Endpoint:
    """A server as it answered.

    Attributes:
        api: chat, completions or generate.
        model: name for the OpenAI requests; None where there is none.
        key: bearer key for servers that ask for one; never stored.
    """

    url: urllib.parse.SplitResult
    api: str
    model: str | None
    key: str | None
    timeout: float


def _connect(url: urllib.parse.SplitResult, timeout: float) -> http.client.HTTPConnection:
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    if url.hostname is None:
        raise UsageError(f"--url {url.geturl()!r} names no host: http://127.0.0.1:30000")
    return kind(url.hostname, url.port, timeout=timeout)


def _place(url: urllib.parse.SplitResult) -> str:
    """``127.0.0.1:30000``; never what may stand before it: a user and a password."""
    return f"{url.hostname}" if url.port is None else f"{url.hostname}:{url.port}"


def _headers(key: str | None) -> dict[str, str]:
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
    return {**headers, "Authorization": f"Bearer {key}"} if key else headers


def _get(url: urllib.parse.SplitResult, path: str, key: str | None, timeout: float) -> Any:
    """JSON of a GET; None where the server has no such path.

    Raises:
        TraceError: nobody listens there.
    """
    connection = _connect(url, timeout)
    try:
        connection.request("GET", url.path.rstrip("/") + path, headers=_headers(key))
        response = connection.getresponse()
        body = response.read()
        if response.status in (401, 403):
            raise TraceError(f"{_place(url)} refuses the request ({response.status}): give its key with --api-key")
        return json.loads(body) if response.status == 200 else None
    except ValueError:
        return None
    except (OSError, http.client.HTTPException) as error:
        raise TraceError(f"no server answers at {url.scheme}://{_place(url)} ({error})") from None
    finally:
        connection.close()


def find_endpoint(url: str, api: str, *, key: str | None, input_ids: bool, timeout: float) -> Endpoint:
    """Ask the server what it speaks.

    ``auto`` takes /generate where the server is SGLang (it counts tokens in every chunk), else completions.

    Raises:
        UsageError: not an URL, or an unknown API.
        TraceError: nobody answers.
    """
    if api not in APIS:
        raise UsageError(f"--api {api!r}: there are {', '.join(APIS)}")
    try:
        parts = urllib.parse.urlsplit(url if "//" in url else f"http://{url}")
        _ = parts.port  # looked at only when it is asked for
    except ValueError as error:
        raise UsageError(f"--url {url!r} is no address: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise UsageError(f"--url {url!r} is not an http address")
    model: str | None = None
    models = _get(parts, "/v1/models", key, min(timeout, 30))
    if isinstance(models, dict) and models.get("data"):
        model = models["data"][0].get("id")
    if api == "auto":
        sglang = input_ids or any(_get(parts, path, key, min(timeout, 30)) is not None for path in _INFO_PATHS)
        api = "generate" if sglang else "completions"
    if input_ids and api == "chat":
        raise UsageError("--input-ids needs --api generate or completions")
    if api != "generate" and model is None:
        raise TraceError(f"{parts.netloc} names no model at /v1/models: is it an OpenAI-compatible server?")
    return Endpoint(parts, api, model, key, timeout)


def request_body(
    endpoint: Endpoint, prompt: str | Sequence[int], max_tokens: int, *, ignore_eos: bool, temperature: float
) -> dict[str, Any]:
    """JSON body of a streaming request; ``prompt`` is text, or token ids."""
    if endpoint.api == "generate":
        source = {"text": prompt} if isinstance(prompt, str) else {"input_ids": list(prompt)}
        sampling = {"max_new_tokens": max_tokens, "temperature": temperature, "ignore_eos": ignore_eos}
        return {**source, "sampling_params": sampling, "stream": True}
    body: dict[str, Any] = {
        "model": endpoint.model,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "stream": True,
        # servers that know continuous_usage_stats count tokens in every chunk, others ignore it
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    if ignore_eos:
        body["ignore_eos"] = True
    if endpoint.api == "chat":
        return {**body, "messages": [{"role": "user", "content": prompt}]}
    return {**body, "prompt": prompt if isinstance(prompt, str) else list(prompt)}


def server_events(response: http.client.HTTPResponse) -> Iterator[Any]:
    """JSON of each ``data:`` line until ``[DONE]``."""
    for line in response:
        if not line.startswith(b"data:"):
            continue
        text = line[5:].strip()
        if text == b"[DONE]":
            return
        yield json.loads(text)


def _read_chunk(api: str, event: dict[str, Any], streamed: Streamed) -> tuple[bool, int | None]:
    """Whether the chunk brought text, and the completion tokens so far if it says so; usage goes into ``streamed``."""
    if event.get("error"):
        error = event["error"]
        raise TraceError(
            f"the server ended the request: {error.get('message', error) if isinstance(error, dict) else error}"
        )
    if api == "generate":
        meta = event.get("meta_info") or {}
        usage = {"prompt_tokens": meta.get("prompt_tokens"), "completion_tokens": meta.get("completion_tokens")}
        streamed.request_id = meta.get("id") or streamed.request_id
        brought = bool(event.get("text")) or bool(event.get("output_ids"))
        own = True
    else:
        usage = event.get("usage") or {}
        streamed.request_id = event.get("id") or streamed.request_id
        choice: dict[str, Any] = next(iter(event.get("choices") or []), {})
        delta = choice.get("delta") or {}
        own = bool(event.get("choices"))
        brought = bool(
            choice.get("text") or delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning")
        )
    tokens = usage.get("completion_tokens")
    if tokens is not None:
        streamed.completion_tokens = tokens
    if usage.get("prompt_tokens") is not None:
        streamed.prompt_tokens = usage["prompt_tokens"]
    if tokens is not None and own:
        # text is held back where a character is incomplete, and repeated where a server sends it whole each time
        brought = tokens > (streamed.chunks[-1][1] or 0 if streamed.chunks else 0)
    return brought, tokens


def stream_request(
    endpoint: Endpoint, body: dict[str, Any], on_tokens: Callable[[int], None] | None = None
) -> Streamed:
    """Send one request and read its stream to the end. Its text is thrown away as it comes.

    Args:
        on_tokens: called with the number of new tokens (chunks, where the server does not count).

    Returns:
        The request; ``error`` is set where it did not end well.
    """
    content = json.dumps(body).encode()
    connection = _connect(endpoint.url, endpoint.timeout)
    streamed = Streamed(request_id=None, sent_ns=time.time_ns())
    try:
        connection.request(
            "POST", endpoint.url.path.rstrip("/") + _PATHS[endpoint.api], body=content, headers=_headers(endpoint.key)
        )
        response = connection.getresponse()
        if response.status != 200:
            text = response.read(2000).decode(errors="replace")
            raise TraceError(f"the server answers {response.status}: {' '.join(text.split())[:300]}")
        before = 0
        for event in server_events(response):
            now = time.time_ns()
            brought, tokens = _read_chunk(endpoint.api, event, streamed)
            if brought:
                streamed.chunks.append((now, tokens))
                if on_tokens is not None:
                    on_tokens(tokens - before if tokens is not None else 1)
                before = tokens if tokens is not None else before + 1
    except TraceError as error:
        streamed.error = str(error)
    except (OSError, ValueError, http.client.HTTPException) as error:
        streamed.error = f"the stream broke: {error or type(error).__name__}"
    finally:
        with contextlib.suppress(OSError):
            connection.close()
    streamed.ended_ns = time.time_ns()
    return streamed
