"""One environment, one set of models and one server for all tests of the real engine."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from vllm_engine import NEEDS_VLLM, SUPPORT, Engine, Recorded, environment, interpreter, serve


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "vllm: needs the real vLLM engine on a CPU, and about a minute")


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    python = interpreter()
    if python is None:
        pytest.skip(NEEDS_VLLM)
    folder = tmp_path_factory.mktemp("vllm")
    models = folder / "models"
    subprocess.run([python, str(SUPPORT / "counting_models.py"), str(models)], check=True)
    return Engine(python, models, folder)


@pytest.fixture(scope="session")
def recorded(engine: Engine) -> Iterator[Recorded]:
    collected = engine.folder / "collected"
    collected.mkdir()
    variables = environment(engine.folder / "cache", SPECANALYZE_DIR=str(collected))
    with serve(engine.python, engine.models, engine.folder / "server.log", variables) as server:
        yield Recorded(server, collected)
