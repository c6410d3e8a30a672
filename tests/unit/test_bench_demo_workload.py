"""What the demonstration asks."""

from collections import Counter

import pytest

from bench.demo.workload import Question, Turn, arm_order, load_workload, numbered

ONE = Question("one", (Turn("user", "Where is it?"),))
TWO = Question("two", (Turn("user", "Hello."), Turn("assistant", "Yes?"), Turn("user", "Where is it?")))


def test_there_are_forty_different_questions() -> None:
    """Neither an id nor a text comes twice: an engine's prefix cache would know it."""
    questions = load_workload().questions

    assert (40, 40, 40) == (
        len(questions),
        len({question.id for question in questions}),
        len({question.turns for question in questions}),
    )


def test_some_questions_have_a_history() -> None:
    """Most customers ask at once; some have said something before."""
    turns = Counter(len(question.turns) for question in load_workload().questions)

    assert {1: 36, 3: 4} == turns


def test_conversations_take_turns() -> None:
    """A conversation begins and ends with the customer, and the two take turns."""
    roles = {tuple(turn.role for turn in question.turns) for question in load_workload().questions}

    assert {("user",), ("user", "assistant", "user")} == roles


def test_rules_stand_last() -> None:
    """The rules are the last message, behind the conversation, and are a system message."""
    workload = load_workload()

    messages = workload.messages(TWO)

    assert ["user", "assistant", "user", "system"] == [message["role"] for message in messages]
    assert {"role": "system", "content": workload.rules} == messages[-1]


def test_rules_are_long_enough_to_matter() -> None:
    """The rules and the tool protocol are about 1,000 tokens, at about four characters a token."""
    assert 3_600 <= len(load_workload().rules) <= 5_200


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        pytest.param(0, (0, 1), id="first"),
        pytest.param(1, (1, 0), id="second"),
        pytest.param(2, (0, 1), id="third"),
        pytest.param(3, (1, 0), id="fourth"),
    ],
)
def test_arms_follow_abba(place: int, expected: tuple[int, int]) -> None:
    """Each arm is asked first as often as second, and twice in a row at each change of question."""
    assert expected == arm_order(place)


def test_steady_drift_meets_both_arms_alike() -> None:
    """In ABBA order the places of the two arms add up to the same."""
    order = [arm for place in range(40) for arm in arm_order(place)]
    places = [sum(place for place, arm in enumerate(order) if arm == wanted) for wanted in (0, 1)]

    assert places[0] == places[1]


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        pytest.param(4, Question("one#4", (Turn("user", "Ticket 4. Where is it?"),)), id="one-turn"),
        pytest.param(5, Question("two#5", (Turn("user", "Ticket 5. Hello."), *TWO.turns[1:])), id="history"),
    ],
)
def test_numbered_question_differs_from_its_beginning(number: int, expected: Question) -> None:
    """The ticket's number stands before everything else, so that no prefix is ever shared."""
    assert expected == numbered((ONE, TWO), number)
