"""Records that survive a run that was cut short."""

from pathlib import Path

import pytest

from bench.common.store import RecordStore, code_of, fingerprint_of
from sternpost_core.errors import OperatingError


def test_a_second_run_finds_the_records_of_the_first(tmp_path: Path) -> None:
    """What was added is there under its key, and nothing else is."""
    path = tmp_path / "records.jsonl"
    RecordStore(path, "f").add("exact/1", {"answers": [-0.5], "text": "zwölf"})

    store = RecordStore(path, "f")

    assert {"answers": [-0.5], "text": "zwölf"} == store["exact/1"]
    assert ("exact/1" in store, "exact/2" in store, len(store)) == (True, False, 1)


def test_a_record_that_was_being_written_is_made_again(tmp_path: Path) -> None:
    """The cut line is dropped, and what follows stands on a line of its own."""
    path = tmp_path / "records.jsonl"
    store = RecordStore(path, "f")
    store.add("a", {"value": 1})
    store.add("b", {"value": 2})
    path.write_text(path.read_text(encoding="utf-8")[:-4], encoding="utf-8")

    cut = RecordStore(path, "f")
    assert ("a" in cut, "b" in cut) == (True, False)
    cut.add("b", {"value": 3})

    assert {"value": 3} == RecordStore(path, "f")["b"]


def test_the_last_record_of_a_key_counts(tmp_path: Path) -> None:
    """A figure that every run records anew is the last run's."""
    path = tmp_path / "records.jsonl"
    store = RecordStore(path, "f")
    store.add("memory", {"bytes": 1})
    store.add("memory", {"bytes": 2})

    assert {"bytes": 2} == RecordStore(path, "f")["memory"]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param('{"fingerprint": "other"}\n', id="another fingerprint"),
        pytest.param("no JSON\n", id="no JSON"),
        pytest.param('{"key": "a"}\n', id="no fingerprint"),
        pytest.param('{"fingerprint": "f"}\n{"value": 1}\n', id="a record without a key"),
        pytest.param("[1]\n", id="no object"),
    ],
)
def test_records_of_something_else_are_refused_and_kept(tmp_path: Path, content: str) -> None:
    """They are never mixed in, and never overwritten."""
    path = tmp_path / "records.jsonl"
    path.write_text(content, encoding="utf-8")

    with pytest.raises(OperatingError, match=r"records\.jsonl"):
        RecordStore(path, "f")

    assert content == path.read_text(encoding="utf-8")


def test_a_fingerprint_tells_settings_apart() -> None:
    """Equal parts give equal fingerprints, others give others."""
    assert fingerprint_of(1, ("a",)) == fingerprint_of(1, ("a",))
    assert fingerprint_of(1, ("a",)) != fingerprint_of(1, ("b",))


def test_records_of_other_code_are_told_apart(tmp_path: Path) -> None:
    """Whatever changes in what is measured: a file's words, its name, or that it is there."""
    package = tmp_path / "package"
    (package / "inner").mkdir(parents=True)
    file = package / "inner" / "one.py"
    file.write_text("a = 1\n")
    (package / "notes.md").write_text("not measured")
    found = [code_of(package), code_of(package)]
    file.write_text("a = 2\n")
    found.append(code_of(package))
    file.rename(package / "two.py")
    found.append(code_of(package))
    (package / "three.py").write_text("")
    found.append(code_of(package))

    assert found[0] == found[1]
    assert 4 == len(set(found))
