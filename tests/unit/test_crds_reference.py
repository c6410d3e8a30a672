"""The reference of the custom resources says what the schemas say."""

from docs.make_crds import REFERENCE, load, render


def test_reference_is_fresh() -> None:
    """Whoever changes a schema runs `make docs`."""
    assert render(load()) == REFERENCE.read_text(encoding="utf-8")
