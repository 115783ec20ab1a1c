"""The SQL of the embedded store: its tables, and the triggers that carry out a transaction in one statement.

``sequence`` counts changes and provides the revisions. ``removed`` records deletions for watches, back to ``floor``.
"""

from __future__ import annotations

FORMAT = 1
APPLICATION_ID = 0x50524C59

SCHEMA = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
BEGIN;
CREATE TABLE state(one INTEGER PRIMARY KEY CHECK (one = 1), identity TEXT NOT NULL, boot TEXT NOT NULL,
                   sequence INTEGER NOT NULL, floor INTEGER NOT NULL);
CREATE TABLE entries(key TEXT NOT NULL UNIQUE, value BLOB NOT NULL, revision INTEGER NOT NULL, session TEXT);
CREATE INDEX entries_by_revision ON entries(revision);
CREATE INDEX entries_by_session ON entries(session) WHERE session IS NOT NULL;
CREATE TABLE removed(key TEXT PRIMARY KEY, revision INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX removed_by_revision ON removed(revision);
CREATE TABLE sessions(id TEXT PRIMARY KEY, process TEXT NOT NULL, ttl_ms INTEGER NOT NULL,
                      renewed_ms INTEGER NOT NULL) WITHOUT ROWID;
COMMIT;
"""

# Temporary tables of each connection: the request of a transaction and its outcome. An insert into ``request`` fires
# the first trigger, which ends expired sessions and evaluates the checks. If they hold, its insert into ``applied``
# fires the second trigger, which applies the operations.
TRANSACTION_TABLES = """
CREATE TEMP TABLE checks(position INTEGER PRIMARY KEY, key TEXT, expect INTEGER, revision INTEGER);
CREATE TEMP TABLE ops(position INTEGER PRIMARY KEY, key TEXT, value BLOB, session TEXT);
CREATE TEMP TABLE failed(position INTEGER, revision INTEGER);
CREATE TEMP TABLE applied(base INTEGER, deleted INTEGER);
CREATE TEMP TABLE ended(id TEXT PRIMARY KEY);
CREATE TEMP TABLE request(identity TEXT, boot TEXT, now_ms INTEGER, dead_process TEXT, dead_session TEXT);
CREATE TEMP TRIGGER request_made AFTER INSERT ON request BEGIN
  SELECT RAISE(ABORT, 'identity') WHERE NOT EXISTS (SELECT 1 FROM state WHERE identity = new.identity);

  INSERT INTO ended SELECT id FROM sessions
    WHERE renewed_ms + ttl_ms <= new.now_ms OR process = new.dead_process OR id = new.dead_session
       OR new.boot <> (SELECT boot FROM state);
  INSERT OR REPLACE INTO removed
    SELECT key, (SELECT sequence FROM state) + row_number() OVER (ORDER BY key)
    FROM entries WHERE session IN (SELECT id FROM ended);
  UPDATE state SET sequence =
    sequence + (SELECT count(*) FROM entries WHERE session IN (SELECT id FROM ended))
    WHERE EXISTS (SELECT 1 FROM ended);
  DELETE FROM entries WHERE session IN (SELECT id FROM ended);
  DELETE FROM sessions WHERE id IN (SELECT id FROM ended);
  UPDATE state SET boot = new.boot WHERE boot <> new.boot;

  INSERT INTO failed SELECT -1, NULL FROM ops
    WHERE session IS NOT NULL AND session NOT IN (SELECT id FROM sessions);
  INSERT INTO failed SELECT c.position, e.revision FROM checks c LEFT JOIN entries e ON e.key = c.key
    WHERE CASE c.expect WHEN 0 THEN e.key IS NOT NULL WHEN 1 THEN e.key IS NULL ELSE e.revision IS NOT c.revision END;
  INSERT INTO applied
    SELECT sequence, (SELECT count(*) FROM ops JOIN entries USING (key) WHERE ops.value IS NULL)
    FROM state WHERE NOT EXISTS (SELECT 1 FROM failed);
END;
CREATE TEMP TRIGGER request_granted AFTER INSERT ON applied BEGIN
  INSERT OR REPLACE INTO removed
    SELECT key, new.base + position FROM ops WHERE value IS NULL AND key IN (SELECT key FROM entries);
  DELETE FROM entries WHERE key IN (SELECT key FROM ops WHERE value IS NULL);
  DELETE FROM removed WHERE key IN (SELECT key FROM ops WHERE value IS NOT NULL);
  INSERT INTO entries SELECT key, value, new.base + position, session FROM ops WHERE value IS NOT NULL
    ON CONFLICT (key) DO UPDATE SET value = excluded.value, revision = excluded.revision, session = excluded.session;
  UPDATE state SET sequence = new.base + (SELECT count(*) FROM ops) WHERE EXISTS (SELECT 1 FROM ops);
END;
CREATE TEMP TABLE lost(key TEXT, value BLOB, sequence INTEGER);
CREATE TEMP TRIGGER lost_writes AFTER INSERT ON lost BEGIN
  UPDATE state SET sequence = new.sequence + 1, floor = new.sequence + 1 WHERE sequence < new.sequence;
  INSERT INTO entries SELECT new.key, new.value, sequence, NULL FROM state WHERE sequence = new.sequence + 1
    ON CONFLICT (key) DO UPDATE SET value = excluded.value, revision = excluded.revision;
  DELETE FROM removed WHERE revision <= (SELECT floor FROM state);
END;
CREATE TEMP TABLE forget(up_to INTEGER);
CREATE TEMP TRIGGER forget_removed AFTER INSERT ON forget BEGIN
  UPDATE state SET floor = new.up_to WHERE floor < new.up_to;
  DELETE FROM removed WHERE revision <= new.up_to;
END;
"""

# The sessions ended, the first check that failed, the sequence before the transaction, the keys it deleted.
OUTCOME = """
SELECT (SELECT count(*) FROM ended), (SELECT min(position) FROM failed),
       (SELECT base FROM applied), (SELECT deleted FROM applied)
"""

# The key and the value that mark the store, and the latest change that it had.
MARK_LOST_WRITES = "INSERT INTO lost VALUES (?, ?, ?)"
