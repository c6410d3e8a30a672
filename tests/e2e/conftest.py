"""
One `sternpost up` with the real vLLM for all tests of this folder, since a start takes most of a minute.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from sternpost_engine.model_fetch import default_directory, is_model
from sternpost_running.up import RunningUp, running_up


@pytest.fixture(scope="session")
def model_directory() -> Path:
    """Return the folder of the fetched model."""
    directory = default_directory(os.environ)
    if not is_model(directory):
        pytest.fail("the tests against vLLM need the small model: run `sternpost model fetch`")
    return directory


@pytest.fixture(scope="session")
def up(model_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    """Run `sternpost up` with one engine until all tests are done; it must then leave no process behind."""
    with running_up(model_directory, tmp_path_factory.mktemp("up")) as running:
        yield running


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    """Return a client that waits for as long as an answer of the small model may take."""
    with httpx.Client(timeout=60, trust_env=False) as client:
        yield client
