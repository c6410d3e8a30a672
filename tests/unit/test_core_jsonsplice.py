"""A document after its edits is the document of the edited body."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.jsonspan import Document, Edit, elements, members, scan
from sternpost_core.jsonsplice import NewElement, spliced

TEXTS = st.text(max_size=6)
MESSAGES = st.lists(st.fixed_dictionaries({"role": TEXTS, "content": TEXTS}), min_size=1, max_size=4)
TOOLS = st.lists(st.fixed_dictionaries({"name": TEXTS}), max_size=3)


def known(document: Document) -> Any:
    """Return all spans that a pipeline asks a document for."""
    arrays = [elements(document, document.members[name].value_span) for name in ("messages", "tools")]
    return document, arrays, [members(document, span) for array in arrays for span in array]


@given(MESSAGES, TOOLS, TOOLS, TEXTS, st.booleans(), st.data())
def test_spliced_document_is_what_a_scan_finds(
    messages: Any, before: Any, after: Any, inserted: str, tools_first: bool, data: st.DataObject
) -> None:
    """Replacing the tools, cutting one string and putting text into another moves all spans along."""
    parts = {"messages": messages, "tools": before, "model": "x"}
    order = ["tools", "messages", "model"] if tools_first else ["messages", "model", "tools"]
    document = scan(json.dumps({name: parts[name] for name in order}).encode())
    spans = elements(document, document.members["messages"].value_span)
    cut, put = (
        members(document, spans[index])["content"].value_span
        for index in sorted([0, data.draw(st.integers(0, len(messages) - 1))])
    )
    edits = [
        Edit(*document.members["tools"].value_span, json.dumps(after).encode()),
        Edit(cut.start + 1, cut.end - 1, b""),
        *([Edit(put.start + 1, put.start + 1, json.dumps(inserted).encode()[1:-1])] if put != cut else []),
    ]
    result = spliced(document, sorted(edits, key=lambda edit: edit.start))

    assert known(scan(result.body)) == known(result)
    assert after == json.loads(result.body)["tools"]


@given(MESSAGES, MESSAGES, TOOLS, TOOLS, st.booleans(), st.data())
def test_new_element_is_found_as_a_scan_finds_it(
    messages: Any, more: Any, before: Any, after: Any, tools_first: bool, data: st.DataObject
) -> None:
    """An object may be put in front of any element, while the tools are replaced and a string is cut."""
    parts = {"messages": messages, "tools": before}
    document = scan(json.dumps(dict(sorted(parts.items(), reverse=tools_first))).encode())
    array = document.members["messages"].value_span
    spans = elements(document, array)
    cut = members(document, spans[0])["content"].value_span
    place = spans[data.draw(st.integers(0, len(messages) - 1))].start
    put = Edit(place, place, json.dumps(more[0]).encode() + b",")
    edits = [
        put,
        Edit(*document.members["tools"].value_span, json.dumps(after).encode()),
        Edit(cut.start + 1, cut.end - 1, b""),
    ]
    result = spliced(document, sorted(edits, key=lambda edit: edit.start), NewElement(array, put))

    assert known(scan(result.body)) == known(result)
    assert dict(scan(result.body).outline.members) == dict(result.outline.members)
    assert len(messages) + 1 == len(json.loads(result.body)["messages"])


def test_nothing_changes_without_edits() -> None:
    """Without edits the body is the same object."""
    document = scan(b'{"messages":[{"role":"user"}],"tools":[]}')

    assert spliced(document, []).body is document.body
    assert known(document) == known(spliced(document, []))
