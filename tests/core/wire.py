"""A wire between a client and PostgreSQL that breaks where a test says: the server has done it, the client never hears.

It forwards bytes and knows of the protocol only what one message looks like: ReadyForQuery outside a transaction, with
which the server acknowledges a COMMIT, or a statement that is a transaction of its own.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

import sqlalchemy as sa

COMMITTED = b"Z\x00\x00\x00\x05I"

When = Literal["before it is sent", "after it is committed"]


@dataclass
class Cut:
    """The next transaction that contains `statement` is cut off; `meanwhile` happens before the client notices."""

    statement: bytes
    when: When
    meanwhile: Callable[[], None]
    done: threading.Event


class Wire:
    """Where clients connect to instead of the server: `url`. Made by `wired()`."""

    def __init__(self, server: sa.URL) -> None:
        self._server = (server.host or "", server.port or 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = server.set(port=self._listener.getsockname()[1]).render_as_string(hide_password=False)
        self._cut: Cut | None = None
        self._lock = threading.Lock()
        self.failures: list[BaseException] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(
        self,
        statement: str,
        when: When = "after it is committed",
        meanwhile: Callable[[], None] = lambda: None,
    ) -> threading.Event:
        """Break the connection of the next transaction that contains this piece of SQL; set when that has happened."""
        done = threading.Event()
        self._cut = Cut(statement.encode(), when, meanwhile, done)
        return done

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                _Line(self, client, server).open()

    def take(self, sent: bytes) -> Cut | None:
        """The cut that these bytes of a client call for, which then is over."""
        with self._lock:
            cut = self._cut
            if cut is None or cut.statement not in sent:
                return None
            self._cut = None
            return cut

    def close(self) -> None:
        self._listener.close()


class _Line:
    """One connection: two threads, each of which carries one direction."""

    def __init__(self, wire: Wire, client: socket.socket, server: socket.socket) -> None:
        self._wire, self._client, self._server = wire, client, server
        self._doom: Cut | None = None

    def open(self) -> None:
        for carry in (self._carry_requests, self._carry_answers):
            threading.Thread(target=self._carried, args=(carry,), daemon=True).start()

    def _carried(self, carry: Callable[[], None]) -> None:
        try:
            carry()
        except OSError:
            pass  # the other direction has hung up, or a peer is gone
        except BaseException as error:
            self._wire.failures.append(error)
        self._hang_up()

    def _hang_up(self) -> None:
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _carry_requests(self) -> None:
        before = b""
        while sent := self._client.recv(65536):
            if self._doom is None:
                self._doom = self._wire.take(before + sent)
                before = sent[-200:]
                if self._doom is not None and self._doom.when == "before it is sent":
                    self._doom.meanwhile()
                    self._doom.done.set()
                    return
            self._server.sendall(sent)

    def _carry_answers(self) -> None:
        before = b""
        while answer := self._server.recv(65536):
            if self._doom is not None and COMMITTED in before + answer:
                self._doom.meanwhile()
                self._doom.done.set()
                return
            before = answer[-len(COMMITTED) + 1 :] if self._doom is not None else b""
            self._client.sendall(answer)


@contextmanager
def wired(url: str) -> Iterator[Wire]:
    """A wire to the server of this database URL, for the duration of the block."""
    wire = Wire(sa.make_url(url))
    try:
        yield wire
    finally:
        wire.close()
    assert not wire.failures, wire.failures
