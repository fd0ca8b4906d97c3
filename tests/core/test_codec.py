"""Values as JSON and back: what is allowed comes back equal, what is not is refused when it is written."""

import dataclasses
import datetime as dt
import decimal
import enum
import json
import math
import os
import pathlib
import subprocess
import sys
import uuid
import zoneinfo
from collections import OrderedDict, namedtuple
from typing import Any, Generic, TypeVar

import pydantic
import pytest

from durable_agents import errors
from durable_agents._core import JSON, JsonCodec, described, dumps, failure


def through(value: Any, codec: JsonCodec = JSON) -> Any:
    """The value after a trip through the text that is stored."""
    text = dumps(codec.encode(value))
    assert text.isascii()
    return codec.decode(json.loads(text))


BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")

PLAIN = {
    "none": None,
    "bools": [True, False],
    "ints": [0, -1, 2**53 + 1, 2**64, -(2**1023)],
    "huge ints": [2**1024, -(2**1024), 10**5000, -(10**20_000)],
    "floats": [0.0, 0.1, 1e308, 5e-324, -1.5],
    "infinities": [math.inf, -math.inf],
    "complex": [1 + 2j, complex(math.inf, -math.inf)],
    "strings": ["", "é☃😀", "zero\0byte", '"\\\n'],
    "lone surrogates": ["\ud800", "\udfff\ud800", "a\ud83d\ude00b", {"\ud83d\ude00": "key"}],
    "bytes": [b"", b"\0\xff", bytearray(b"x")],
    "dates": [
        dt.date(1, 1, 1),
        dt.date.max,
        dt.time(23, 59, 59, 999999),
        dt.timedelta(-1, 5, 7),
        dt.timedelta.max,
    ],
    "datetimes": [dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.datetime.min],
    "offsets": [dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=-5, minutes=3, seconds=7)))],
    "time with offset": dt.time(1, 2, tzinfo=dt.timezone(dt.timedelta(hours=2))),
    "decimals": [decimal.Decimal("0.10"), decimal.Decimal("-Infinity"), decimal.Decimal("1E+400")],
    "uuid": uuid.UUID(int=7),
    "tuples": [(), (1, (2, [3]))],
    "sets": [set(), {1, "a", None, (1, 2)}, frozenset({frozenset({1}), frozenset()})],
    "dict": {"a": {"b": [1, {"c": None}]}, "": 0},
    "keys that are no strings": {1: "int", None: "none", (1, "a"): "tuple", True and 2.5: "float", b"b": 1},
    "keys that look alike": {1: "int", "1": "str"},
    "dollar": [{"$": "int", "v": "0x1"}, {"$": 1}, {"a": {"$": "type", "t": "os:system", "v": "ls"}}],
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_data_comes_back(name: str) -> None:
    value = PLAIN[name]
    assert through(value) == value
    if name not in ("huge ints", "sets"):  # which have no repr, or one that depends on their order
        assert repr(through(value)) == repr(value)


def test_values_that_do_not_equal_themselves() -> None:
    assert math.isnan(through(math.nan))
    assert math.isnan(through({math.nan: 1}).popitem()[0])
    assert through(decimal.Decimal("sNaN")).is_snan()
    assert math.isnan(through(complex(math.nan, 1)).real)
    assert math.copysign(1, through(-0.0)) == -1


def test_the_order_of_a_dict_is_kept() -> None:
    assert list(through({"b": 1, "a": 2})) == ["b", "a"]
    assert list(through({2: 1, 1: 2})) == [2, 1]


@pytest.mark.parametrize("fold", [0, 1])
def test_a_datetime_keeps_its_zone_and_its_fold(fold: int) -> None:
    """The hour that a clock goes twice through: without the fold, an hour is lost or won."""
    value = dt.datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=fold)
    back = through(value)
    assert back.tzinfo is BERLIN
    assert (back.fold, back.timestamp()) == (fold, value.timestamp())


def test_a_time_keeps_its_zone_or_is_refused() -> None:
    value = dt.time(2, 30, tzinfo=BERLIN, fold=1)
    try:
        back = through(value)
    except errors.EncodingError:
        return
    assert (back.tzinfo, back.fold) == (BERLIN, 1)


def test_a_zone_without_a_name_is_refused() -> None:
    class Zone(dt.tzinfo):
        def utcoffset(self, _: dt.datetime | None) -> dt.timedelta:
            return dt.timedelta(hours=1)

    with pytest.raises(errors.EncodingError, match="zoneinfo"):
        JSON.encode(dt.datetime(2026, 1, 1, tzinfo=Zone()))


# -- types that are allowed by name


class Color(enum.Enum):
    RED = (255, 0, 0)
    BLUE = (0, 0, 255)


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    YES = "yes"


class Access(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()
    EXECUTE = enum.auto()


class Bits(enum.IntFlag, boundary=enum.KEEP):
    ONE = 1


@dataclasses.dataclass
class Order:
    id: int
    items: list["Item"] = dataclasses.field(default_factory=list)
    total: decimal.Decimal = dataclasses.field(default=decimal.Decimal(0), init=False)

    def __post_init__(self) -> None:
        calls.append("Order")


@dataclasses.dataclass(frozen=True, slots=True)
class Item:
    name: str
    tags: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        calls.append("Item")


@dataclasses.dataclass(slots=True)
class Special(Order):
    note: str = ""


calls: list[str] = []
"""What was called of the types here: nothing may be, when a value is read."""


class Address(pydantic.BaseModel):
    city: str
    _cache: dict[str, int] = pydantic.PrivateAttr(default_factory=dict)
    _client: Any = pydantic.PrivateAttr(default=None)

    @pydantic.field_validator("city")
    @classmethod
    def known(cls, value: str) -> str:
        calls.append("Address")
        if value == "Atlantis":
            raise ValueError("no such city")
        return value.title()

    def model_post_init(self, _: Any) -> None:
        calls.append("post")


class Person(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow", frozen=True)
    name: str = pydantic.Field(alias="fullName")
    address: Address | None = None
    orders: Any = ()
    color: Color = Color.RED

    @pydantic.computed_field
    def shout(self) -> str:
        return self.name.upper()


class Tags(pydantic.RootModel[list[str]]):
    pass


T = TypeVar("T")


class Box(pydantic.BaseModel, Generic[T]):
    content: T


ALL = JsonCodec(
    [Color, Level, Word, Access, Bits, Order, Item, Special, Address, Person, Tags, Box, Box[int]]
)


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()


@pytest.mark.parametrize(
    "value",
    [
        Color.RED,
        Level.LOW,
        Word.YES,
        Access.READ,
        Access.READ | Access.EXECUTE,
        Access(0),
        ~Access.READ,
        Bits.ONE | 64,
        {Color.BLUE: [Level.LOW]},
    ],
    ids=str,
)
def test_enums_come_back_as_themselves(value: Any) -> None:
    back = through(value, ALL)
    assert back == value
    assert type(back) is type(value)
    if isinstance(value, Color):
        assert back is value


def test_dataclasses_come_back_without_being_constructed() -> None:
    special = Special(2, note="gift")
    value = [Order(1, [Item("pen", frozenset("ab"))]), special]
    value[0].total = decimal.Decimal("9.90")
    calls.clear()
    back = through(value, ALL)
    assert back == value
    assert [type(order) for order in back] == [Order, Special]
    assert back[0].total == decimal.Decimal("9.90")
    assert calls == []
    with pytest.raises(dataclasses.FrozenInstanceError):
        back[0].items[0].name = "pencil"


def test_models_come_back_without_being_validated() -> None:
    person = Person(fullName="ada", address=Address(city="paris"), orders=(Order(1),), nickname="countess")
    assert person.address is not None
    person.address.__dict__["city"] = "Atlantis"  # what a validator would refuse by now
    person.address._cache["hits"] = 3
    person.address._client = object()  # starts anew
    calls.clear()
    back = through(person, ALL)
    assert calls == []
    assert back.address.city == "Atlantis"
    assert (back.name, back.nickname, back.shout, back.color) == ("ada", "countess", "ADA", Color.RED)
    assert back.model_fields_set == person.model_fields_set
    assert back.model_extra == {"nickname": "countess"}
    assert (back.address._cache, back.address._client) == ({"hits": 3}, None)
    assert back.model_dump() == person.model_dump()
    with pytest.raises(pydantic.ValidationError):
        back.name = "frozen"


def test_models_that_pydantic_makes() -> None:
    for value in (Tags(["a"]), Box[int](content=1), Box(content=Item("pen"))):
        assert through(value, ALL) == value


def test_a_model_that_was_changed_afterwards() -> None:
    address = Address.model_construct()
    assert through(address, ALL).model_fields_set == set()


def test_hooks_code_types_that_are_nothing_of_this() -> None:
    class Money:
        def __init__(self, cents: int) -> None:
            self.cents = cents

    codec = JsonCodec(hooks={Money: (lambda m: (m.cents, Color.RED.name), lambda v: Money(v[0]))})
    assert through([Money(7)], codec)[0].cents == 7
    with pytest.raises(errors.EncodingError):
        JSON.encode(Money(7))


# -- what is refused, and when


class Text(str):
    __slots__ = ()


class Number(int):
    pass


Pair = namedtuple("Pair", "a b")


@dataclasses.dataclass
class Output(OrderedDict):  # type: ignore[type-arg]  # as some machine-learning libraries have it
    text: str = ""


@dataclasses.dataclass
class Failure(Exception):
    code: int = 0


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (object(), "value"),
        ({"orders": [1, {"item": object()}]}, "value.orders[1].item"),
        ({"a": (1, object())}, "value.a["),
        ({1: object()}, "value[1]"),
        ({object(): 1}, "key of value"),
        ({"a": {object()}}, "value.a["),
        ([Order(1, [object()])], "items[0]"),  # type: ignore[list-item]
        (Address.model_construct(city=object()), "city"),
    ],
    ids=["top", "nested", "tuple", "int key", "as a key", "set", "dataclass", "model"],
)
def test_a_refusal_names_the_place_and_the_type(value: Any, where: str) -> None:
    with pytest.raises(errors.EncodingError) as caught:
        ALL.encode(value)
    assert where in str(caught.value)
    assert "builtins.object" in str(caught.value)
    assert "types=[" in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        Text("a"),
        Number(1),
        Pair(1, 2),
        OrderedDict(a=1),
        Item("pen"),
        Color.RED,
        lambda: 1,
        len,
        range(3),
        ...,
        memoryview(b"x"),
        NotImplemented,
        sys,
        iter([]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_would_not_come_back_as_it_is_is_refused(value: Any) -> None:
    with pytest.raises(errors.EncodingError):
        JSON.encode(value)


@pytest.mark.parametrize("value", [Output("x"), Failure(3)], ids=["dict", "exception"])
def test_a_dataclass_that_is_more_than_its_fields_comes_back_or_is_refused_when_written(value: Any) -> None:
    """At reading it would be too late: the effect has happened, and nothing can serve it."""
    if isinstance(value, dict):
        value["hidden"] = 1
    codec = JsonCodec([Output, Failure])
    try:
        text = dumps(codec.encode(value))
    except errors.EncodingError:
        return
    back = codec.decode(json.loads(text))
    assert type(back) is type(value)
    assert not isinstance(value, dict) or dict(back) == dict(value)


def test_two_classes_of_one_name_are_not_mixed_up() -> None:
    def make() -> type:
        @dataclasses.dataclass
        class Local:
            x: int = 1

        return Local

    one, two = make(), make()
    codec = JsonCodec([one])
    assert type(through(one(), codec)) is one
    with pytest.raises(errors.EncodingError):
        codec.encode(two())


def cycle(kind: str) -> Any:
    if kind == "list":
        items: list[Any] = []
        items.append([items])
        return items
    if kind == "dict":
        mapping: dict[str, Any] = {}
        mapping["a"] = {"b": mapping}
        return mapping
    if kind == "dataclass":
        order = Order(1)
        order.items = [order]  # type: ignore[list-item]
        return order
    if kind == "model":
        person = Person.model_construct(name="n")
        person.__dict__["address"] = person
        return person
    return (lambda inner: inner.append((inner,)) or inner)([])  # type: ignore[func-returns-value]


@pytest.mark.parametrize("kind", ["list", "dict", "dataclass", "model", "tuple"])
def test_a_value_that_contains_itself_is_refused(kind: str) -> None:
    with pytest.raises(errors.EncodingError, match="contains itself"):
        ALL.encode(cycle(kind))


def test_a_value_at_two_places_is_no_cycle() -> None:
    shared = [1]
    assert through([shared, {"a": shared}, (shared,)]) == [[1], {"a": [1]}, ([1],)]


def deep(kind: str, levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value] if kind == "list" else {"a": value} if kind == "dict" else (value,)
    return value


@pytest.mark.parametrize("kind", ["list", "dict", "tuple"])
def test_a_very_deep_value_is_refused(kind: str) -> None:
    with pytest.raises(errors.EncodingError, match="deep"):
        JSON.encode(deep(kind, 50_000))


@pytest.mark.parametrize("kind", ["list", "dict", "tuple"])
def test_what_was_written_can_be_read_deeper_in_the_stack(kind: str) -> None:
    """A value that was accepted near the limit must not fail when a framework asks for it from further down."""
    depth = next(n for n in range(1000, 0, -10) if _is_accepted(deep(kind, n)))
    text = dumps(JSON.encode(deep(kind, depth)))

    def down(levels: int) -> Any:
        return down(levels - 1) if levels else JSON.decode(json.loads(text))

    assert down(300) is not None


def _is_accepted(value: Any) -> bool:
    try:
        JSON.encode(value)
    except errors.EncodingError:
        return False
    return True


SETS = """
from durable_agents._core import JSON, dumps
print(dumps(JSON.encode([{"a", "b", "c", 1, None, (1, "x")}, frozenset({frozenset("xyz"), frozenset("uvw")})])))
"""


def test_sets_have_one_text_whatever_the_hash_seed() -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SETS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in "123"
    ]
    texts = {process.communicate(timeout=30)[0] for process in started}
    assert len(texts) == 1
    assert "frozenset" in texts.pop()


# -- reading what somebody else may have written


@pytest.mark.parametrize(
    "name",
    [
        "subprocess:Popen",
        "os:system",
        "antigravity:x",
        "core.test_codec:Order",
        "builtins:eval",
        "",
        "x",
        None,
        3,
        [],
    ],
)
def test_a_name_that_only_the_database_named_is_neither_imported_nor_called(name: Any) -> None:
    before = set(sys.modules)
    with pytest.raises((errors.EncodingError, TypeError)):
        JSON.decode({"$": "type", "t": name, "v": {"args": "true", "shell": True}})
    assert set(sys.modules) == before
    assert calls == []


@pytest.mark.parametrize(
    "data",
    [{"$": "unknown", "v": 1}, {"$": "int"}, {"$": []}, {"$": "int", "v": "zz"}, {"$": "dict"}],
    ids=dumps,
)
def test_a_tag_that_means_nothing_gives_nothing(data: Any) -> None:
    with pytest.raises((errors.EncodingError, LookupError, TypeError, ValueError)):
        JSON.decode(data)


def test_a_type_that_is_not_allowed_any_more_is_said() -> None:
    text = dumps(ALL.encode(Item("pen")))
    with pytest.raises(errors.EncodingError, match=r"test_codec:Item.*types="):
        JSON.decode(json.loads(text))


class Alarm(Exception):
    def __new__(cls, *_: Any) -> "Alarm":
        raise AssertionError("constructed")

    def __init__(self, *_: Any) -> None:
        raise AssertionError("constructed")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AssertionError("set")

    @property
    def code(self) -> int:
        raise AssertionError("read")

    @code.setter
    def code(self, _: int) -> None:
        raise AssertionError("set")


def test_an_error_is_read_without_running_its_class() -> None:
    data = {
        "type": f"{__name__}:Alarm",
        "message": "m",
        "args": ["a", 1],
        "attributes": {"code": 7, "more": 8},
    }
    error = failure.decode(data)
    assert type(error) is Alarm
    assert error.args == ("a", 1)
    assert error.__dict__ == {"code": 7, "more": 8}


@pytest.mark.parametrize(
    "name",
    [
        "builtins:SystemExit",
        "builtins:KeyboardInterrupt",
        "builtins:eval",
        "builtins:ValueError.mro",
        "os:system",
        "os",
        "antigravity:Fly",
        "durable_agents._core.errors:Released",
        "subprocess:Popen",
        "sys:modules",
        ":",
        "",
    ],
)
def test_an_error_of_a_type_that_is_no_error_here_is_a_recorded_one(name: str) -> None:
    before = set(sys.modules)
    error = failure.decode({"type": name, "message": "m", "args": ["a"], "traceback": "t"})
    assert type(error) is errors.RecordedError
    assert (error.type, error.message, error.traceback) == (name, "m", "t")
    assert set(sys.modules) == before


KNOWN = (
    *("errno", "strerror", "filename", "filename2", "encoding", "object", "start", "end", "reason"),
    *("name", "path", "value", "pos", "doc", "returncode", "cmd", "output", "run_id", "questions"),
)


@pytest.mark.parametrize(
    "error",
    [
        OSError(2, "No such file", "/missing"),
        TimeoutError(110, "slow"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "start byte"),
        UnicodeEncodeError("ascii", "é", 0, 1, "range"),
        ImportError("no module", name="m", path="/p"),
        StopIteration(3),
        KeyError("k"),
        json.JSONDecodeError("bad", "{", 1),
        ExceptionGroup("g", [ValueError(1), ExceptionGroup("inner", [OSError(13, "denied")])]),
        decimal.InvalidOperation(),
        subprocess.CalledProcessError(3, ["ls"], b"out"),
        errors.RunWaiting("r", {"q": 1}),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_keeps_what_its_type_knows(error: Exception) -> None:
    back = failure.decode(json.loads(dumps(failure.encode(error))))
    assert type(back) is type(error)
    assert (str(back), back.args[:1]) == (str(error), error.args[:1])
    for name in KNOWN:
        assert getattr(back, name, None) == getattr(error, name, None), name
    if isinstance(error, ExceptionGroup):
        assert isinstance(back, ExceptionGroup)
        assert repr(back.exceptions) == repr(error.exceptions)


@pytest.mark.parametrize(
    "args", ["text", 7, {"a": 1}, [[]], {"$": "type", "t": "os:system", "v": 1}, {"$": "x"}]
)
@pytest.mark.parametrize(
    "name", ["builtins:ValueError", "builtins:UnicodeDecodeError", "builtins:ExceptionGroup"]
)
def test_an_error_with_strange_arguments_is_still_an_error(name: str, args: Any) -> None:
    error = failure.decode(
        {"type": name, "message": "m", "args": args, "attributes": {"x": {"$": "type", "t": "y"}}}
    )
    assert isinstance(error, Exception)


class Shape(pydantic.BaseModel):
    sides: int
    name: str = ""


@dataclasses.dataclass
class Spot:
    at: tuple[int, ...]


Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1, (2, 3)), [1, [2, 3]]),
        (Pair(1, 2), [1, 2]),
        (Shape(sides=3), Shape(sides=3, name="")),
        ({"b": 1, "a": 2}, {"a": 2, "b": 1}),
        ({2: "b", 1: "a"}, {1: "a", 2: "b"}),
        (["\ud800"], ["?"]),
        (OrderedDict(a=1), {"a": 1}),
        (bytearray(b"x"), b"x"),
        ({"c", "a", "b"}, {"b", "c", "a"}),
        (Spot((1, 2)), Spot([1, 2])),  # type: ignore[arg-type]
        (object(), object()),
        (lambda: 1, lambda: 2),
    ],
)
def test_what_a_framework_gives_back_is_told_as_the_same(one: Any, other: Any) -> None:
    assert described({"x": one}) == described({"x": other})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, 2], [2, 1]),
        (1, "1"),
        (1, True),
        (None, "null"),
        (Shape(sides=3), Shape(sides=4)),
        (Shape(sides=3), {"sides": 3, "name": ""}),
        (Spot((1,)), Spot((2,))),
        ({1}, {2}),
        ({1: "a"}, {"1": "a"}),
        (b"x", b"y"),
        (dt.date(2026, 1, 1), dt.date(2026, 1, 2)),
        (decimal.Decimal("1.0"), decimal.Decimal("1.00")),
        (pathlib.Path("a"), pathlib.Path("b")),
        (object(), 1),
    ],
)
def test_what_differs_is_told_apart(one: Any, other: Any) -> None:
    assert described(one) != described(other)


def test_what_contains_itself_is_told_too() -> None:
    around: list[Any] = []
    around.append(around)
    assert described(around) == described(around)


def test_what_cannot_be_told_is_told_by_its_type() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert described(deep) == "builtins:list"
    assert described(10**5000) == "builtins:int"
