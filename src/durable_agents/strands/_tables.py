"""The table of conversations. A row holds what a run added to the one it began from, `parent`; 0 is the beginning.

`done` tells a conversation that goes on from there from one that a waiting run has only got so far.
"""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE IF NOT EXISTS strands_conversation ("
        "space TEXT NOT NULL, session TEXT NOT NULL, number INTEGER NOT NULL, parent INTEGER NOT NULL,"
        " done INTEGER NOT NULL, run TEXT NOT NULL, body TEXT NOT NULL,"
        " PRIMARY KEY (space, session, number)){without_rowid}",
    ),
)
HEAD = "SELECT max(number) FROM strands_conversation WHERE space = ? AND session = ? AND done = 1"
LAST = "SELECT max(number) FROM strands_conversation WHERE space = ? AND session = ?"
READ = "SELECT number, parent, body FROM strands_conversation WHERE space = ? AND session = ? AND number <= ?"
READ_NEWEST = (
    "SELECT number, parent, body FROM strands_conversation"
    " WHERE space = ? AND session = ? AND number <= ? AND number >= (SELECT coalesce(max(number), 0)"
    " FROM strands_conversation WHERE space = ? AND session = ? AND number <= ? AND parent = 0)"
)
"""From the newest one on that is stored whole."""
WRITE = (
    "INSERT INTO strands_conversation (space, session, number, parent, done, run, body) VALUES (?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (space, session, number) DO UPDATE SET parent = excluded.parent, done = excluded.done,"
    " run = excluded.run, body = excluded.body"
)
