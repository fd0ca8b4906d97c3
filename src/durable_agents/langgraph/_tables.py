"""The saver's tables, and the statements that write them.

A checkpoint's row holds everything but its larger values. A channel's row holds the value of one version, for a list
the digest of its node. Items are what lists are made of, see `_deltas`. Rows of a thread refer to each other by key
and never to those of another thread.
"""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE IF NOT EXISTS langgraph_checkpoint ("
        "space TEXT NOT NULL, thread TEXT NOT NULL, ns TEXT NOT NULL, id TEXT NOT NULL, parent TEXT, run TEXT,"
        " type TEXT NOT NULL, body {blob} NOT NULL, metadata TEXT NOT NULL, PRIMARY KEY (space, thread, ns, id)"
        "){without_rowid}",
        "CREATE TABLE IF NOT EXISTS langgraph_channel ("
        "space TEXT NOT NULL, thread TEXT NOT NULL, ns TEXT NOT NULL, channel TEXT NOT NULL, version TEXT NOT NULL,"
        " type TEXT NOT NULL, body {blob} NOT NULL, PRIMARY KEY (space, thread, ns, channel, version)){without_rowid}",
        "CREATE TABLE IF NOT EXISTS langgraph_item ("
        "space TEXT NOT NULL, thread TEXT NOT NULL, digest {blob} NOT NULL, base {blob}, type TEXT NOT NULL,"
        " body {blob} NOT NULL, PRIMARY KEY (space, thread, digest)){without_rowid}",
        "CREATE TABLE IF NOT EXISTS langgraph_write ("
        "space TEXT NOT NULL, thread TEXT NOT NULL, ns TEXT NOT NULL, checkpoint TEXT NOT NULL, task TEXT NOT NULL,"
        " idx INTEGER NOT NULL, path TEXT NOT NULL, channel TEXT NOT NULL, type TEXT NOT NULL, body {blob} NOT NULL,"
        " PRIMARY KEY (space, thread, ns, checkpoint, task, idx)){without_rowid}",
    ),
)
"""Templates: `{blob}` is the type of binary columns, `{without_rowid}` SQLite's option for tables without row ids."""

_COLUMNS = {
    "langgraph_checkpoint": "ns, id, parent, run, type, body, metadata",
    "langgraph_channel": "ns, channel, version, type, body",
    "langgraph_item": "digest, base, type, body",
    "langgraph_write": "ns, checkpoint, task, idx, path, channel, type, body",
}
"""The columns after `space, thread`."""


def _insert(table: str, on_conflict: str) -> str:
    columns = f"space, thread, {_COLUMNS[table]}"
    marks = ", ".join("?" for _ in columns.split(", "))
    return f"INSERT INTO {table} ({columns}) VALUES ({marks}) ON CONFLICT {on_conflict}"


PUT_CHECKPOINT = _insert(
    "langgraph_checkpoint",
    "(space, thread, ns, id) DO UPDATE SET parent = excluded.parent, run = excluded.run, type = excluded.type,"
    " body = excluded.body, metadata = excluded.metadata",
)
PUT_CHANNEL = _insert("langgraph_channel", "(space, thread, ns, channel, version) DO NOTHING")
PUT_ITEM = _insert("langgraph_item", "(space, thread, digest) DO NOTHING")
PUT_WRITE = _insert("langgraph_write", "(space, thread, ns, checkpoint, task, idx) DO NOTHING")
REPLACE_WRITE = _insert(
    "langgraph_write",
    "(space, thread, ns, checkpoint, task, idx) DO UPDATE SET path = excluded.path, channel = excluded.channel,"
    " type = excluded.type, body = excluded.body",
)
DELETE_THREAD = tuple(f"DELETE FROM {table} WHERE space = ? AND thread = ?" for table in _COLUMNS)
"""Parameters: space, thread."""
COPY_THREAD = tuple(
    f"INSERT INTO {table} (space, thread, {columns}) SELECT space, ?, {columns} FROM {table}"
    " WHERE space = ? AND thread = ? ON CONFLICT DO NOTHING"
    for table, columns in _COLUMNS.items()
)
"""Parameters: target thread, space, source thread."""
