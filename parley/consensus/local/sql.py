"""The SQL of the embedded store: its tables, and the triggers that carry out a transaction in one statement.

``sequence`` counts changes and provides the revisions. ``removed`` records deletions for watches, back to ``floor``.
checksums.py describes the checksums.
"""

from __future__ import annotations

from parley.consensus.local.checksums import TOTAL_MASK

APPLICATION_ID = 0x50524C59
FIRST_FORMAT = 1
"""The format without checksums (upgrade.py)."""
FORMAT = 0x2_FFFD
"""The number of the second format (2), followed by its complement in the lower 16 bits, so that damage cannot turn it
into the number of another format."""

TABLES = (
    "CREATE TABLE state(one INTEGER PRIMARY KEY CHECK (one = 1), identity TEXT NOT NULL, boot TEXT NOT NULL, "
    "sequence INTEGER NOT NULL, floor INTEGER NOT NULL, total INTEGER NOT NULL, checksum INTEGER NOT NULL)",
    "CREATE TABLE entries(key TEXT NOT NULL UNIQUE, value BLOB NOT NULL, revision INTEGER NOT NULL, session TEXT, "
    "key_checksum INTEGER NOT NULL, checksum INTEGER NOT NULL)",
    "CREATE INDEX entries_by_revision ON entries(revision)",
    "CREATE INDEX entries_by_session ON entries(session) WHERE session IS NOT NULL",
    "CREATE TABLE removed(key TEXT PRIMARY KEY, revision INTEGER NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE INDEX removed_by_revision ON removed(revision)",
    "CREATE TABLE sessions(id TEXT PRIMARY KEY, process TEXT NOT NULL, ttl_ms INTEGER NOT NULL, "
    "renewed_ms INTEGER NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID",
    # A process of the older version that opened the store just before its upgrade. Its other writes fail, too, because
    # they lack columns.
    "CREATE TRIGGER renewed_without_checksum BEFORE UPDATE ON sessions "
    "WHEN new.checksum - new.renewed_ms <> old.checksum - old.renewed_ms "
    "BEGIN SELECT RAISE(ABORT, 'a newer version of Parley has upgraded the store: upgrade this process, too'); END",
)
"""The statements that create the tables. SQLite stores them verbatim in ``sqlite_schema``."""

FIRST_STATE = "INSERT INTO state VALUES (1, ?, ?, 0, 0, 0, ?)"
"""Inserts the only row of ``state``. The parameters are the identity, the boot id and the identity's checksum."""

_REQUIRE_IDENTITY = """SELECT RAISE(ABORT, 'identity') WHERE NOT EXISTS (
    SELECT 1 FROM state
    WHERE identity = new.identity AND checksum - sequence - floor - total = new.identity_checksum)"""

# Temporary tables of each connection: the request of a transaction and its outcome. An insert into ``request`` fires
# the first trigger, which ends expired sessions and evaluates the checks. If they hold, its insert into ``applied``
# fires the second trigger, which applies the operations.
#
# Views whose triggers carry out the other changes: ``numbers`` changes the numbers of ``state`` and their checksum.
# An insert into ``ending``, ``started``, ``lost`` or ``forget`` is carried out and not stored.
TRANSACTION_TABLES = f"""
CREATE TEMP TABLE checks(position INTEGER PRIMARY KEY, key TEXT, expect INTEGER, revision INTEGER);
CREATE TEMP TABLE ops(position INTEGER PRIMARY KEY, key TEXT, value BLOB, session TEXT, key_checksum INTEGER,
                      checksum INTEGER);
CREATE TEMP TABLE failed(position INTEGER, revision INTEGER);
CREATE TEMP TABLE applied(base INTEGER, deleted INTEGER, total INTEGER);
CREATE TEMP TABLE ended(id TEXT PRIMARY KEY);
CREATE TEMP VIEW request AS
  SELECT identity, 0 AS identity_checksum, boot, 0 AS now_ms, '' AS dead_process, '' AS dead_session FROM state;
CREATE TEMP VIEW numbers AS SELECT sequence, floor, total FROM state;
CREATE TEMP TRIGGER numbers_changed INSTEAD OF UPDATE ON numbers BEGIN
  UPDATE state SET sequence = new.sequence, floor = new.floor, total = new.total & {TOTAL_MASK},
    checksum = checksum + (new.sequence - old.sequence) + (new.floor - old.floor)
             + ((new.total & {TOTAL_MASK}) - old.total);
END;
CREATE TEMP VIEW ending AS SELECT 1 AS sessions;
CREATE TEMP TRIGGER sessions_ended INSTEAD OF INSERT ON ending BEGIN
  INSERT OR REPLACE INTO removed SELECT key, revision, key_checksum + revision FROM (
    SELECT key, key_checksum, (SELECT sequence FROM state) + row_number() OVER (ORDER BY key) AS revision
    FROM entries WHERE session IN (SELECT id FROM ended));
  UPDATE numbers SET
    sequence = sequence + (SELECT count(*) FROM entries WHERE session IN (SELECT id FROM ended)),
    total = total
      + (SELECT ifnull(sum(checksum & {TOTAL_MASK}), 0) FROM removed WHERE revision > (SELECT sequence FROM state))
      - (SELECT ifnull(sum(checksum & {TOTAL_MASK}), 0) FROM entries WHERE session IN (SELECT id FROM ended))
      - (SELECT ifnull(sum((checksum - renewed_ms) & {TOTAL_MASK}), 0) FROM sessions
         WHERE id IN (SELECT id FROM ended));
  DELETE FROM entries WHERE session IN (SELECT id FROM ended);
  DELETE FROM sessions WHERE id IN (SELECT id FROM ended);
END;
CREATE TEMP TRIGGER request_made INSTEAD OF INSERT ON request BEGIN
  {_REQUIRE_IDENTITY};

  INSERT INTO ended SELECT id FROM sessions
    WHERE renewed_ms + ttl_ms <= new.now_ms OR process = new.dead_process OR id = new.dead_session
       OR new.boot <> (SELECT boot FROM state);
  INSERT INTO ending SELECT 1 WHERE EXISTS (SELECT 1 FROM ended);
  UPDATE state SET boot = new.boot WHERE boot <> new.boot;

  INSERT INTO failed SELECT -1, NULL FROM ops
    WHERE session IS NOT NULL AND session NOT IN (SELECT id FROM sessions);
  INSERT INTO failed SELECT c.position, e.revision FROM checks c LEFT JOIN entries e ON e.key = c.key
    WHERE CASE c.expect WHEN 0 THEN e.key IS NOT NULL WHEN 1 THEN e.key IS NULL ELSE e.revision IS NOT c.revision END;
  INSERT INTO applied
    SELECT s.sequence, count(CASE WHEN o.value IS NULL THEN e.key END),
      (s.total + ifnull(sum(CASE WHEN o.value IS NOT NULL OR e.key IS NOT NULL THEN
         ((ifnull(o.checksum, o.key_checksum) + s.sequence + o.position) & {TOTAL_MASK})
         - ifnull(e.checksum & {TOTAL_MASK}, 0) - ifnull(r.checksum & {TOTAL_MASK}, 0) END), 0)) & {TOTAL_MASK}
    FROM state s LEFT JOIN ops o ON 1 LEFT JOIN entries e ON e.key = o.key LEFT JOIN removed r ON r.key = o.key
    WHERE NOT EXISTS (SELECT 1 FROM failed) GROUP BY s.one;
END;
CREATE TEMP TRIGGER request_granted AFTER INSERT ON applied BEGIN
  INSERT OR REPLACE INTO removed
    SELECT key, new.base + position, key_checksum + new.base + position FROM ops
    WHERE value IS NULL AND key IN (SELECT key FROM entries);
  DELETE FROM entries WHERE key IN (SELECT key FROM ops WHERE value IS NULL);
  DELETE FROM removed WHERE key IN (SELECT key FROM ops WHERE value IS NOT NULL);
  INSERT INTO entries
    SELECT key, value, new.base + position, session, key_checksum, checksum + new.base + position
    FROM ops WHERE value IS NOT NULL
    ON CONFLICT (key) DO UPDATE SET value = excluded.value, revision = excluded.revision, session = excluded.session,
      key_checksum = excluded.key_checksum, checksum = excluded.checksum;
  UPDATE state SET sequence = new.base + (SELECT count(*) FROM ops), total = new.total,
    checksum = checksum + (SELECT count(*) FROM ops) + (new.total - total) WHERE EXISTS (SELECT 1 FROM ops);
END;
CREATE TEMP VIEW started AS
  SELECT id, process, ttl_ms, renewed_ms, checksum, '' AS identity, 0 AS identity_checksum FROM sessions;
CREATE TEMP TRIGGER session_started INSTEAD OF INSERT ON started BEGIN
  {_REQUIRE_IDENTITY};
  INSERT INTO sessions VALUES (new.id, new.process, new.ttl_ms, new.renewed_ms, new.checksum + new.renewed_ms);
  UPDATE numbers SET total = total + (new.checksum & {TOTAL_MASK});
END;
CREATE TEMP VIEW lost AS SELECT key, value, 0 AS sequence, key_checksum, checksum FROM entries;
CREATE TEMP TRIGGER lost_writes INSTEAD OF INSERT ON lost WHEN (SELECT sequence FROM state) < new.sequence BEGIN
  UPDATE numbers SET sequence = new.sequence + 1, floor = new.sequence + 1,
    total = total + ((new.checksum + new.sequence + 1) & {TOTAL_MASK})
      - (SELECT ifnull(sum(checksum & {TOTAL_MASK}), 0) FROM entries WHERE key = new.key)
      - (SELECT ifnull(sum(checksum & {TOTAL_MASK}), 0) FROM removed);
  DELETE FROM removed;
  INSERT OR REPLACE INTO entries VALUES (new.key, new.value, new.sequence + 1, NULL, new.key_checksum,
                                         new.checksum + new.sequence + 1);
END;
CREATE TEMP VIEW forget AS SELECT floor AS up_to FROM state;
CREATE TEMP TRIGGER forget_removed INSTEAD OF INSERT ON forget WHEN (SELECT floor FROM state) < new.up_to BEGIN
  UPDATE numbers SET floor = new.up_to,
    total = total - (SELECT ifnull(sum(checksum & {TOTAL_MASK}), 0) FROM removed WHERE revision <= new.up_to);
  DELETE FROM removed WHERE revision <= new.up_to;
END;
"""

# The sessions ended, the first check that failed, the sequence before the transaction, the keys it deleted.
OUTCOME = """
SELECT (SELECT count(*) FROM ended), (SELECT min(position) FROM failed),
       (SELECT base FROM applied), (SELECT deleted FROM applied)
"""

# The key and the value that mark the store, the latest change that it had, and the checksums of the key and the entry.
MARK_LOST_WRITES = "INSERT INTO lost VALUES (?, ?, ?, ?, ?)"
