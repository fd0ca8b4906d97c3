"""How conversations are stored: as what changed, and read again whatever was taken away in between."""

import itertools
import random
from typing import Any

from strands_kit import agent_of

import durable_agents
from durable_agents._core import engine as engines
from durable_agents.strands import DurableAgent
from durable_agents.strands._sessions import Conversation, Session


def session_of(name: str) -> Session:
    DurableAgent(agent_of(lambda n, _: "x"), name)  # makes the tables
    return Session(engines.current().store, f"strands.{name}", "s", Conversation({"": ["hello"]}, {"": {}}))


def add(session: Session, parent: int, messages: list[Any], done: bool = True) -> int:
    now = Conversation({"": messages}, {"": {"n": len(messages)}})
    number, statement = session.statement(parent, session.read(parent), now, done=done, run_id="r")
    session.store.write([statement])
    return number


def test_what_was_added_is_read_again(name: str, engine: str) -> None:
    """Messages come at the end and go at the front, are changed, and branch where a run only got so far."""
    session, chance, words = session_of(name), random.Random(4), itertools.count()
    known = {0: ["hello"]}
    done = 0
    for _ in range(150):
        parent = chance.choice([done, done, done, chance.choice(list(known))])
        messages = known[parent][chance.choice([0, 0, 0, 1, 5]) :]
        if messages and chance.random() < 0.1:
            messages = [*messages[:-1], f"changed {next(words)}"]
        messages = [*messages, *(f"word {next(words)}" for _ in range(chance.randrange(4)))]
        is_done = chance.random() < 0.8
        number = add(session, parent, messages, is_done)
        known[number] = messages
        done = number if is_done else done
        assert session.head() == done
    for number, messages in known.items():
        assert session.read(number).messages[""] == messages
        assert number == 0 or session.read(number).rest[""] == {"n": len(messages)}


def test_only_what_is_new_is_stored(name: str, engine: str) -> None:
    session = session_of(name)
    messages, number, sizes = [{"text": "word " * 50, "n": n} for n in range(40)], 0, []
    for n in range(40, 100):
        messages = [*messages[1:], {"text": "word " * 50, "n": n}]  # a sliding window
        number = add(session, number, messages)
        rows = session.store.query(
            "SELECT length(body) FROM strands_conversation WHERE number = ?", (number,)
        )
        sizes.append(int(rows[0][0]))
    assert sorted(sizes)[len(sizes) // 2] < 500
    assert sum(size > 5000 for size in sizes) <= 3, "the first, and each 32nd"


def test_a_conversation_outlives_its_process(name: str, engine: str) -> None:
    app = DurableAgent(agent_of(lambda n, messages: f"{len(messages)}"), name)
    for n in range(5):
        app(f"turn {n}", run_id=f"r{n}")
    durable_agents.shutdown()
    durable_agents.launch(engine, heartbeat=0.05, grace=0.2, poll=0.05)
    assert str(app("turn 5", run_id="r5")).strip() == "11"
    assert len(app.messages) == 12
    assert app.messages_of("another") == []
