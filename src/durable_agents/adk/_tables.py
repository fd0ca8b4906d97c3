"""The tables of sessions, and the statements that write them.

State of an app has neither user nor session, state of a user no session; every key is a row, written over. An event's
row holds it as JSON; `seq` orders the events of a session, and rows that two writers gave one number by their time.
"""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE IF NOT EXISTS adk_session ("
        "app TEXT NOT NULL, user_id TEXT NOT NULL, id TEXT NOT NULL, updated DOUBLE PRECISION NOT NULL, run TEXT,"
        " PRIMARY KEY (app, user_id, id)){without_rowid}",
        "CREATE TABLE IF NOT EXISTS adk_state ("
        "app TEXT NOT NULL, user_id TEXT NOT NULL, session TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,"
        " PRIMARY KEY (app, user_id, session, name)){without_rowid}",
        "CREATE TABLE IF NOT EXISTS adk_event ("
        "app TEXT NOT NULL, user_id TEXT NOT NULL, session TEXT NOT NULL, id TEXT NOT NULL, seq BIGINT NOT NULL,"
        " at DOUBLE PRECISION NOT NULL, run TEXT, place TEXT NOT NULL, body TEXT NOT NULL,"
        " PRIMARY KEY (app, user_id, session, id)){without_rowid}",
        "CREATE INDEX IF NOT EXISTS adk_event_order ON adk_event (app, user_id, session, seq)",
        "CREATE INDEX IF NOT EXISTS adk_event_run ON adk_event (run)",
    ),
)
"""`run` is the run that made the session or appended the event, NULL outside of runs; `place` the
path of the step, agent or node it is of."""

PUT_SESSION = (
    "INSERT INTO adk_session (app, user_id, id, updated, run) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
)
TOUCH_SESSION = "UPDATE adk_session SET updated = ? WHERE app = ? AND user_id = ? AND id = ?"
PUT_STATE = (
    "INSERT INTO adk_state (app, user_id, session, name, value) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT (app, user_id, session, name) DO UPDATE SET value = excluded.value"
)
PUT_EVENT = (
    "INSERT INTO adk_event (app, user_id, session, id, seq, at, run, place, body) VALUES (?, ?, ?, ?,"
    " (SELECT COALESCE(MAX(seq), 0) + 1 FROM adk_event WHERE app = ? AND user_id = ? AND session = ?),"
    " ?, ?, ?, ?) ON CONFLICT DO NOTHING"
)
DELETE_SESSION = (
    "DELETE FROM adk_event WHERE app = ? AND user_id = ? AND session = ?",
    "DELETE FROM adk_state WHERE app = ? AND user_id = ? AND session = ?",
    "DELETE FROM adk_session WHERE app = ? AND user_id = ? AND id = ?",
)

GET_SESSION = "SELECT updated, run FROM adk_session WHERE app = ? AND user_id = ? AND id = ?"
LIST_SESSIONS = "SELECT user_id, id, updated FROM adk_session WHERE app = ? ORDER BY updated, user_id, id"
GET_STATE = (
    "SELECT user_id, session, name, value FROM adk_state WHERE app = ? AND ((user_id = '' AND session = '')"
    " OR (user_id = ? AND session = '') OR (user_id = ? AND session = ?))"
)
LAST_SEQ = "SELECT COALESCE(MAX(seq), 0) FROM adk_event WHERE app = ? AND user_id = ? AND session = ?"
GET_EVENTS = (
    "SELECT body FROM adk_event WHERE app = ? AND user_id = ? AND session = ? AND seq <= ?"
    " ORDER BY seq, at, id"
)
RUN_OF_TEXT = (
    "SELECT run FROM adk_event WHERE app = ? AND user_id = ? AND session = ? AND run IS NOT NULL AND body LIKE ?"
    " ORDER BY seq LIMIT 1"
)
EVENTS_OF_RUN = (
    "SELECT app, user_id, session, id, seq, place, body FROM adk_event WHERE run = ? ORDER BY seq, at, id"
)
