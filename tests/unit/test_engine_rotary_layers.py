"""Which rotary module turns which layer's keys."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sternpost_engine.rotary_layers import UnknownRotaryError, live_modules, rotaries_of


class Rotary(nn.Module):  # type: ignore[misc]
    """A rotary module, by the two names that all of vLLM's have."""

    is_neox_style = True

    def _compute_cos_sin_cache(self) -> torch.Tensor:
        return torch.empty(0)


class Owner(nn.Module):  # type: ignore[misc]
    """A model's attention block: the attention layer and, as children, rotary modules."""

    def __init__(self, *rotaries: nn.Module, declares_none: bool = False) -> None:
        super().__init__()
        self.attn = nn.Identity()
        if declares_none:
            self.rotary_emb = None
        for number, rotary in enumerate(rotaries):
            self.add_module(f"rotary_{number}", rotary)


def layers_of(*owners: Owner) -> dict[str, nn.Module]:
    """Return the attention layers by name, as vLLM has them."""
    return {f"layer-{number}": owner.attn for number, owner in enumerate(owners)}


GLOBAL, LOCAL = Rotary(), Rotary()


@pytest.mark.parametrize(
    ("owners", "known", "expected"),
    [
        pytest.param([Owner(GLOBAL), Owner(GLOBAL)], [GLOBAL], [GLOBAL, GLOBAL], id="one-for-all"),
        pytest.param([Owner(LOCAL), Owner(GLOBAL)], [GLOBAL, LOCAL], [LOCAL, GLOBAL], id="local-and-global"),
        pytest.param([Owner(), Owner()], [GLOBAL], [GLOBAL, GLOBAL], id="kept-elsewhere-in-the-model"),
        pytest.param([Owner(), Owner()], [GLOBAL, GLOBAL], [GLOBAL, GLOBAL], id="known-twice"),
        pytest.param(
            [Owner(GLOBAL), Owner(declares_none=True)], [GLOBAL], [GLOBAL, None], id="layer-without-positions"
        ),
    ],
)
def test_layers_rotary_module(
    owners: list[Owner], known: list[Rotary], expected: list[Rotary | None]
) -> None:
    """It is its owner's."""
    layers = layers_of(*owners)

    found = rotaries_of(layers, [nn.Linear(1, 1), *owners, *layers.values()], known)

    assert dict(zip(layers, expected, strict=True)) == found


@pytest.mark.parametrize(
    ("owner", "known", "message"),
    [
        pytest.param(Owner(), [], "layer layer-0 has no rotary module .* the model has 0", id="none-at-all"),
        pytest.param(Owner(), [GLOBAL, LOCAL], "layer-0 has no .* the model has 2", id="either-of-two"),
        pytest.param(Owner(GLOBAL, LOCAL), [GLOBAL, LOCAL], "layer-0 has 2 rotary modules", id="both"),
    ],
)
def test_unclear_rotary_module_is_an_error_that_names_the_layer(
    owner: Owner, known: list[Rotary], message: str
) -> None:
    """A guess would put keys where the model does not expect them."""
    with pytest.raises(UnknownRotaryError, match=message):
        rotaries_of(layers_of(owner), [owner], known)


def test_live_modules_are_found() -> None:
    """Among everything that this process holds."""
    owner = Owner(GLOBAL)

    assert any(found is owner for found in live_modules())
