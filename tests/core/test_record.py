"""The record as evidence: hashed by hand, chained, redacted; whatever is changed from outside is noticed."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from core.harness import crash, eventually
from durable_agents import errors, runs
from durable_agents._core import Draft, Usage, engine, step
from durable_agents._core.journal import load
from durable_agents._core.record import Record, now_us
from durable_agents._core.store import runs as rows
from plain import Plain

pytestmark = pytest.mark.usefixtures("sqlite")
Agent = Callable[..., Plain]


def stored(run_id: str) -> list[str]:
    return rows.records(engine.current().store, run_id)


def put(run_id: str, seq: int, text: str | None) -> None:
    sql = "UPDATE operation_outputs SET output = ? WHERE workflow_uuid = ? AND function_id = ?"
    assert engine.current().store.execute(sql, (text, run_id, seq)) == 1


def move(run_id: str, seq: int, to: int) -> None:
    sql = "UPDATE operation_outputs SET function_id = ? WHERE workflow_uuid = ? AND function_id = ?"
    assert engine.current().store.execute(sql, (to, run_id, seq)) == 1


def copy(source: tuple[str, int], to: tuple[str, int]) -> None:
    store = engine.current().store
    sql = "INSERT INTO operation_outputs (workflow_uuid, function_id, function_name, output) VALUES (?, ?, ?, ?)"
    store.execute(sql, (*to, "pasted", stored(source[0])[source[1] - 1]))


def delete(run_id: str, seq: int) -> None:
    sql = "DELETE FROM operation_outputs WHERE workflow_uuid = ? AND function_id = ?"
    assert engine.current().store.execute(sql, (run_id, seq)) == 1


def edited(text: str, **parts: Any) -> str:
    """The stored record with other parts: body, signature, salt, payload."""
    return json.dumps({**json.loads(text), **parts})


@pytest.fixture
def order(agent: Agent) -> Callable[[str], Plain]:
    """Makes a run of three tools: five records, of which the first opens and the last closes it."""
    runner = agent(
        lambda x: [step("tool", name, lambda name=name: f"{name} {x}", input=name) for name in "abc"]
    )

    def make(run_id: str) -> Plain:
        assert runner.run(1, run_id=run_id) == ["a 1", "b 1", "c 1"]
        return runner

    return make


# -- the format


def by_hand(kind: str, body: bytes) -> str:
    """SHA-256 over DSSE's pre-authentication encoding: `printf | sha256sum` would do."""
    return hashlib.sha256(b"DSSEv1 " + f"{len(kind)} {kind} {len(body)} ".encode() + body).hexdigest()


def test_the_hashes_can_be_computed_by_hand(order: Callable[[str], Plain]) -> None:
    order("by-hand")
    previous = ""
    for seq, text in enumerate(stored("by-hand"), 1):
        parts = json.loads(text)
        assert set(parts) == {"body", "signature", "salt", "payload"}
        body = json.loads(parts["body"])
        assert (body["v"], body["run"], body["seq"], body["prev"]) == (1, "by-hand", seq, previous)
        salted = bytes.fromhex(parts["salt"]) + parts["payload"].encode()
        assert body["out"] == by_hand("application/vnd.durable-agents.payload.v1", salted)
        assert parts["body"].isascii()
        previous = by_hand("application/vnd.durable-agents.record.v1+json", parts["body"].encode())
        assert previous == Record.load(text).hash


def test_a_known_record_has_a_known_hash() -> None:
    """The format is a promise to verifiers that are not this library."""
    text = '{"v":1,"run":"r","seq":1,"prev":"","kind":"open","path":"open","at":1,"worker":"","epoch":0,"out":""}'
    record = Record.load(json.dumps({"body": text, "signature": "", "salt": "00", "payload": "null"}))
    assert record.hash == by_hand("application/vnd.durable-agents.record.v1+json", text.encode())
    assert record.hash == "9dfb93ce081ce18bc4ca05b6cf86b6fc96eae16b3dbf8fb2f1755976730aecbf"


def test_a_body_holds_no_floats_and_no_empty_fields() -> None:
    draft = Draft("model", "model:m", '"x"', name="m", usage=Usage("gpt", 3, 0))
    record = draft.seal(run="r", seq=1, prev="", at=now_us(), worker="w", epoch=1)
    assert set(record.body) == {*BODY, "name", "prev", "usage", "out"}
    assert record.body["usage"] == {"model": "gpt", "input_tokens": 3}
    assert json.loads(record.text, parse_float=pytest.fail) == record.body


def test_equal_payloads_have_different_digests() -> None:
    """Else a redacted yes could be told from a redacted no."""
    draft = Draft("tool", "tool:t", '"yes"')
    sealed = [draft.seal(run="r", seq=1, prev="", at=1, worker="w", epoch=1) for _ in range(2)]
    assert sealed[0].body["out"] != sealed[1].body["out"]


def test_a_record_survives_its_storage_byte_by_byte() -> None:
    draft = Draft("tool", "tool:é☃\ud800", '"\\ud800"', name="é")
    record = draft.seal(run="r", seq=1, prev="", at=1, worker="w", epoch=1)
    assert Record.load(record.dump()) == record
    assert Record.load(record.dump()).hash == record.hash


# -- changes from outside


def broken(run_id: str, runner: Plain, match: str = "run") -> None:
    """Whoever reads or goes on with the run is told, and the run is not continued on what was changed."""
    with pytest.raises(errors.BrokenRecord, match=match):
        runs.get(run_id).steps()
    with pytest.raises(errors.BrokenRecord, match=match):
        runs.get(run_id).result(2)
    with pytest.raises(errors.BrokenRecord, match=match):
        runner.run(1, run_id=run_id)


@pytest.mark.parametrize("field", ["path", "at", "kind", "worker", "in", "status", "run", "seq", "prev", "v"])
def test_an_edited_body_is_noticed(order: Callable[[str], Plain], field: str) -> None:
    runner = order(f"edit-{field}")
    text = stored(f"edit-{field}")[2]
    body = json.loads(json.loads(text)["body"])
    body[field] = 7 if isinstance(body.get(field), int) else "other"
    put(f"edit-{field}", 3, edited(text, body=json.dumps(body, separators=(",", ":"))))
    broken(f"edit-{field}", runner)


def test_a_body_written_in_another_way_is_noticed(order: Callable[[str], Plain]) -> None:
    runner = order("blank")
    text = stored("blank")[2]
    put("blank", 3, edited(text, body=json.loads(text)["body"].replace(",", ", ")))
    broken("blank", runner)


def test_an_inserted_record_is_noticed(order: Callable[[str], Plain]) -> None:
    runner = order("insert")
    for seq in (5, 4, 3):
        move("insert", seq, seq + 1)
    copy(("insert", 2), ("insert", 3))
    broken("insert", runner)


def test_a_record_put_at_the_end_is_noticed(order: Callable[[str], Plain]) -> None:
    runner = order("append")
    copy(("append", 2), ("append", 6))
    broken("append", runner)


def test_reordered_records_are_noticed(order: Callable[[str], Plain]) -> None:
    runner = order("reorder")
    move("reorder", 2, 9)
    move("reorder", 3, 2)
    move("reorder", 9, 3)
    broken("reorder", runner)


def test_a_record_of_another_run_is_noticed(order: Callable[[str], Plain]) -> None:
    runner = order("paste")
    order("source")
    delete("paste", 3)
    copy(("source", 3), ("paste", 3))
    broken("paste", runner, "paste")


@pytest.mark.parametrize("seq", [1, 2, 4])
def test_a_deleted_record_is_noticed(order: Callable[[str], Plain], seq: int) -> None:
    runner = order(f"delete-{seq}")
    delete(f"delete-{seq}", seq)
    broken(f"delete-{seq}", runner)


def test_a_deleted_end_is_noticed_in_a_run_that_is_over(order: Callable[[str], Plain]) -> None:
    order("tail")
    delete("tail", 5)
    with pytest.raises(errors.DurableError):
        runs.get("tail").result(2)


@pytest.mark.parametrize("part", ["payload", "salt"])
def test_a_changed_payload_ends_a_run_that_would_be_served_it(
    order: Callable[[str], Plain], part: str
) -> None:
    run_id = f"changed-{part}"
    runner = order(run_id)
    crash(run_id, after=3)
    put(run_id, 3, edited(stored(run_id)[2], **{part: '"b 100"' if part == "payload" else "00" * 16}))
    with pytest.raises(errors.BrokenRecord, match=r"'tool:b'.*changed"):
        runner.run(1, run_id=run_id)
    assert runs.get(run_id).status == "failed"
    assert [s.path for s in runs.get(run_id).steps()] == ["tool:a", "tool:b"]


def test_a_changed_result_is_not_given(order: Callable[[str], Plain]) -> None:
    order("result")
    put("result", 5, edited(stored("result")[4], payload='["forged"]'))
    with pytest.raises(errors.BrokenRecord, match=r"'close'.*changed"):
        runs.get("result").result(2)


def test_a_framework_that_handles_every_error_cannot_hide_a_changed_payload(agent: Agent) -> None:
    def body(_: None) -> str:
        try:
            return str(step("tool", "t", lambda: "charged"))
        except Exception as error:
            return f"told the model: {error}"

    runner = agent(body)
    runner.run(run_id="swallowed")
    crash("swallowed")
    put("swallowed", 2, edited(stored("swallowed")[1], payload='"forged"'))
    with pytest.raises(errors.BrokenRecord):
        runner.run(run_id="swallowed")
    assert runs.get("swallowed").status == "failed"


def test_a_broken_run_neither_spins_nor_blocks_the_others(
    agent: Agent, order: Callable[[str], Plain], caplog: pytest.LogCaptureFixture
) -> None:
    order("spins")
    crash("spins", after=4)
    delete("spins", 2)
    engine.current().wake()
    assert agent(lambda x: x).start(1).result(5) == 1
    eventually(lambda: "spins" in caplog.text, 5)
    told = caplog.text.count("'spins'")
    for n in range(3):
        assert agent(lambda x: x).start(n).result(5) == n
    assert caplog.text.count("'spins'") - told <= 1
    runs.get("spins").cancel()


# -- what is no record

BODY = {
    "v": 1,
    "run": "malformed",
    "seq": 5,
    "kind": "close",
    "path": "close",
    "at": 1,
    "worker": "w",
    "epoch": 1,
}


def close(**fields: Any) -> dict[str, Any]:
    """A closing record that fits the chain but for the fields given; None leaves one out."""
    body = {**BODY, "prev": load("malformed", stored("malformed")[:4])[3].hash, "out": "0" * 64, **fields}
    text = json.dumps({name: value for name, value in body.items() if value is not None})
    return {"body": text, "signature": "", "salt": "00" * 16, "payload": "null"}


MALFORMED: dict[str, Callable[[], Any]] = {
    "null": lambda: None,
    "nothing": lambda: "",
    "no json": lambda: "{",
    "number": lambda: "7",
    "list": lambda: "[]",
    "deep json": lambda: "[" * 200_000,
    "no body": lambda: '{"signature":"","salt":"","payload":null}',
    "body is no text": lambda: {**close(), "body": {"path": "close", "at": 1}},
    "body is no json": lambda: {**close(), "body": "{"},
    "body is a list": lambda: {**close(), "body": "[]"},
    "body is a text": lambda: {**close(), "body": '"path"'},
    "body is deep": lambda: {**close(), "body": "[" * 200_000},
    "huge number": lambda: {**close(), "body": '{"v":' + "1" * 5000 + "}"},
    "no path": lambda: close(path=None),
    "path is a number": lambda: close(path=3),
    "no time": lambda: close(at=None),
    "time is a text": lambda: close(at="now"),
    "no kind": lambda: close(kind=None),
    "no out": lambda: close(out=None),
    "no worker": lambda: close(kind="tool", worker=None),
    "no epoch": lambda: close(kind="tool", epoch=None),
    "epoch is a text": lambda: close(kind="tool", epoch="first"),
    "time out of range": lambda: close(kind="tool", at=10**30),
    "attempt is a text": lambda: close(kind="tool", attempt="first"),
    "usage is a text": lambda: close(kind="tool", usage="much"),
    "usage of other fields": lambda: close(kind="tool", usage={"dollars": 3}),
    "salt is no hex": lambda: {**close(), "salt": "salt"},
    "salt is a number": lambda: {**close(), "salt": 3},
    "no salt": lambda: {k: v for k, v in close().items() if k != "salt"},
    "payload is a number": lambda: {**close(), "payload": 3},
    "no payload": lambda: {k: v for k, v in close().items() if k != "payload"},
    "lone surrogate": lambda: {**close(), "body": close()["body"][:-1] + ',"x":"\ud800"}'},
}


@pytest.fixture(scope="module")
def malformed(sqlite: str) -> str:
    runner = Plain(lambda _: [step("tool", name, lambda: None) for name in "abc"], "malformed")
    runner.run(run_id="malformed")
    return "malformed"


@pytest.mark.parametrize("what", MALFORMED)
def test_what_is_no_record_is_a_broken_record(malformed: str, what: str) -> None:
    """Whoever can write the database must not bring the reader down with an error nobody expects."""
    found = MALFORMED[what]()
    put(malformed, 5, json.dumps(found) if isinstance(found, dict) else found)
    run = runs.get(malformed)
    for ask in (run.steps, lambda: run.result(2)) if "tool" in str(found) else (lambda: run.result(2),):
        with pytest.raises(errors.BrokenRecord):
            ask()


def test_a_row_that_is_no_run_of_ours_is_not_found(order: Callable[[str], Plain]) -> None:
    order("foreign")
    sql = "UPDATE workflow_status SET application_name = 'other' WHERE workflow_uuid = 'foreign'"
    engine.current().store.execute(sql)
    with pytest.raises(errors.RunNotFound):
        runs.get("foreign")
    assert "foreign" not in [run.id for run in runs.list()]


# -- redaction


def test_a_redacted_payload_still_verifies_and_is_shown(agent: Agent) -> None:
    def body(_: None) -> str:
        step("model", "m", lambda: "a name", usage=lambda _: Usage("gpt", 5, 2))
        with pytest.raises(ValueError, match="a name"):
            step("tool", "t", lambda: (_ for _ in ()).throw(ValueError("a name")))
        return "done"

    runner = agent(body)
    runner.run(run_id="redacted")
    for seq in (2, 3):
        put("redacted", seq, edited(stored("redacted")[seq - 1], salt="", payload=None))
    model, tool = runs.get("redacted").steps()
    assert (model.path, model.usage, model.error) == ("model:m", Usage("gpt", 5, 2), None)
    assert (tool.path, tool.error) == ("tool:t", "(redacted)")
    assert runs.get("redacted").result(2) == "done"
    assert runner.run(run_id="redacted") == "done"
    crash("redacted")
    with pytest.raises(errors.BrokenRecord, match=r"'model:m'.*redacted"):
        runner.run(run_id="redacted")


@pytest.mark.parametrize("failed", [False, True])
def test_a_redacted_end_says_so(agent: Agent, failed: bool) -> None:
    runner, run_id = agent(lambda x: 1 / x), f"end-{failed}"
    if failed:
        with pytest.raises(ZeroDivisionError):
            runner.run(0, run_id=run_id)
    else:
        runner.run(1, run_id=run_id)
    put(run_id, 2, edited(stored(run_id)[1], salt="", payload=None))
    assert runs.get(run_id).status == ("failed" if failed else "succeeded")
    with pytest.raises(errors.BrokenRecord, match="redacted"):
        runs.get(run_id).result(2)
    assert runs.get(run_id).steps() == []
