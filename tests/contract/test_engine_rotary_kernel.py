"""vLLM's rotary kernel, which turns stored keys where it can: as exact as torch's operators, or not used."""

from types import SimpleNamespace
from typing import Any

import pytest

from sternpost_fakes.vllm_modules import import_object

pytestmark = pytest.mark.engine

POSITIONS = 512


def rotary_of(*, head_dim: int, rotary_dim: int, neox: bool) -> Any:
    """Return vLLM's own rotary module, which turns keys by torch's operators."""
    torch = import_object("torch")
    kind = import_object("vllm.model_executor.layers.rotary_embedding.base:RotaryEmbedding")
    config = import_object("vllm.config:VllmConfig")()
    with import_object("vllm.config:set_current_vllm_config")(config):
        module = kind(head_dim, rotary_dim, POSITIONS, 10_000.0, neox, torch.float32)
    return module


@pytest.mark.parametrize("neox", [True, False], ids=["halves", "neighbours"])
@pytest.mark.parametrize(
    ("head_dim", "rotary_dim"),
    [
        pytest.param(64, 64, id="whole-heads"),
        pytest.param(128, 128, id="wide-heads"),
        pytest.param(64, 32, id="half-heads"),
    ],
)
@pytest.mark.parametrize("position", [0, 300])
def test_kernel_turns_keys_as_torch_does(head_dim: int, rotary_dim: int, neox: bool, position: int) -> None:
    """Out of place for its caller: stored keys stay as they are."""
    torch = import_object("torch")
    setup = import_object("sternpost_engine.worker_setup")
    rotary = rotary_of(head_dim=head_dim, rotary_dim=rotary_dim, neox=neox)
    rotation = import_object("sternpost_engine.rotary:rotation_of")(rotary, torch.device("cpu"))
    keys = torch.randn((40, 3, head_dim), generator=torch.Generator().manual_seed(1))
    stored = keys.clone()
    expected, turned = torch.empty_like(keys), torch.empty_like(keys)

    rotation.rotate(keys, position, expected)
    rotation.with_kernel(setup.fused_rotation).rotate(keys, position, turned)

    assert pytest.approx(expected.flatten().tolist(), abs=1e-6) == turned.flatten().tolist()
    assert torch.equal(stored, keys)


@pytest.mark.parametrize(
    ("kernel", "used"),
    [
        pytest.param("right", True, id="right"),
        pytest.param("wrong", False, id="turns-otherwise"),
        pytest.param("missing", False, id="not-there"),
    ],
)
def test_kernel_is_used_where_it_passes_the_models_own_test(kernel: str, used: bool) -> None:
    """Otherwise keys are turned by torch's operators; nothing is refused."""
    torch = import_object("torch")
    setup = import_object("sternpost_engine.worker_setup")
    shape = SimpleNamespace(kv_heads=3, head_dim=64, dtype=torch.float32)

    def missing(*arguments: Any) -> None:
        raise RuntimeError("no kernel for this device")

    kernels = {"right": setup.fused_rotation, "wrong": lambda *arguments: None, "missing": missing}
    rotary = rotary_of(head_dim=64, rotary_dim=64, neox=True)

    rotation = setup.checked_rotation(rotary, shape, torch.device("cpu"), kernels[kernel])

    assert used == (rotation.kernel is not None)
