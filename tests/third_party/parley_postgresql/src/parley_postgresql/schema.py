"""The objects in the server: tables, and a function for each call of several steps.

A function takes the identity of the store and the lowest revision that it must have. It returns a status: ``done``,
``wrong`` (another store), ``older`` (the store is older than that), ``over`` (the session has ended), or ``refused`` (a
check does not hold). Functions are volatile and run at READ COMMITTED: each statement after the lock sees everything
committed before the lock was taken.
"""

from __future__ import annotations

REMOVED_KEPT = 10_000
"""The number of revisions for which deletions are remembered."""
_NOTICE_BYTES_MAX = 7500  # PostgreSQL takes 7999


def channel(schema: str) -> str:
    """Return the channel of notifications. The payload has the keys written, ``*`` if they are too many, or nothing for
    a new session."""
    return f"parley_{schema}"


def creation(schema: str, identity: str) -> str:
    """Return the script that creates the store unless it exists. Only one client at a time runs it."""
    return _CREATION.format(
        schema=schema,
        identity=identity,
        channel=channel(schema),
        kept=REMOVED_KEPT,
        notice=_NOTICE_BYTES_MAX,
    )


_CREATION = r"""
DO $creation$
BEGIN
PERFORM pg_advisory_xact_lock(hashtext('parley store creation'), hashtext('{schema}'));
IF to_regclass('{schema}.store') IS NOT NULL THEN
    RETURN;
END IF;
CREATE SCHEMA IF NOT EXISTS {schema};

CREATE TABLE {schema}.store (identity text NOT NULL, revision bigint NOT NULL, floor bigint NOT NULL);
COMMENT ON COLUMN {schema}.store.floor IS 'deletions up to this revision may have been forgotten';
INSERT INTO {schema}.store VALUES ('{identity}', 0, 0);

CREATE TABLE {schema}.sessions (id text PRIMARY KEY, ttl_ms bigint NOT NULL, beat bigint NOT NULL);

CREATE TABLE {schema}.entries (
    key bytea PRIMARY KEY, value bytea NOT NULL, revision bigint NOT NULL, session text);
CREATE INDEX ON {schema}.entries (revision);
CREATE INDEX ON {schema}.entries (session) WHERE session IS NOT NULL;

CREATE TABLE {schema}.removed (key bytea PRIMARY KEY, revision bigint NOT NULL);
CREATE INDEX ON {schema}.removed (revision);

CREATE FUNCTION {schema}.lock() RETURNS void LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock((x'7061726c'::bigint << 32) | '{schema}.store'::regclass::oid::bigint)
$$;

CREATE FUNCTION {schema}.judge(expected text, lowest bigint, OUT status text, OUT reached bigint)
LANGUAGE plpgsql AS $$
DECLARE
    present text;
BEGIN
    SELECT identity, revision INTO present, reached FROM {schema}.store;
    status := CASE WHEN present IS DISTINCT FROM expected THEN 'wrong'
                   WHEN reached < lowest THEN 'older' ELSE 'done' END;
END $$;

-- Count the revision up and tell of the keys written.
CREATE FUNCTION {schema}.advance(keys bytea[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    now_at bigint;
    notice text := (SELECT string_agg(convert_from(key, 'UTF8'), ' ') FROM unnest(keys) AS key);
BEGIN
    UPDATE {schema}.store SET revision = revision + 1 RETURNING revision INTO now_at;
    IF now_at % 1000 = 0 AND now_at > {kept} THEN
        DELETE FROM {schema}.removed WHERE revision <= now_at - {kept};
        UPDATE {schema}.store SET floor = now_at - {kept};
    END IF;
    PERFORM pg_notify('{channel}', CASE WHEN length(notice) <= {notice} THEN notice ELSE '*' END);
END $$;

-- states: of a refused transaction the revision of each checked key; of one that was applied how many keys it deleted.
CREATE FUNCTION {schema}.txn(
    expected text, lowest bigint, check_keys bytea[], kinds int[], revisions bigint[],
    keys bytea[], vals bytea[], bound text[],
    OUT status text, OUT reached bigint, OUT states bigint[])
LANGUAGE plpgsql AS $$
DECLARE
    gone bigint := 0;
    holds boolean;
BEGIN
    PERFORM {schema}.lock();
    SELECT * INTO status, reached FROM {schema}.judge(expected, lowest);
    IF status <> 'done' THEN
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM unnest(bound) AS b (id) WHERE b.id IS NOT NULL
               AND NOT EXISTS (SELECT FROM {schema}.sessions s WHERE s.id = b.id)) THEN
        status := 'over';
        RETURN;
    END IF;
    SELECT bool_and(CASE c.kind WHEN 0 THEN e.revision IS NULL
                                WHEN 1 THEN e.revision IS NOT NULL
                                ELSE e.revision IS NOT DISTINCT FROM c.revision END),
           array_agg(e.revision ORDER BY c.n)
        INTO holds, states
        FROM unnest(check_keys, kinds, revisions) WITH ORDINALITY AS c (key, kind, revision, n)
        LEFT JOIN {schema}.entries e ON e.key = c.key;
    IF NOT holds THEN
        status := 'refused';
        RETURN;
    END IF;
    status := 'done';
    IF cardinality(keys) > 0 THEN
        reached := reached + 1;
        WITH deleted AS (
            DELETE FROM {schema}.entries e USING unnest(keys, vals) AS op (key, value)
                WHERE e.key = op.key AND op.value IS NULL RETURNING e.key)
        INSERT INTO {schema}.removed AS r SELECT key, reached FROM deleted
            ON CONFLICT (key) DO UPDATE SET revision = excluded.revision;
        GET DIAGNOSTICS gone = ROW_COUNT;
        INSERT INTO {schema}.entries AS e SELECT op.key, op.value, reached, op.session
            FROM unnest(keys, vals, bound) AS op (key, value, session) WHERE op.value IS NOT NULL
            ON CONFLICT (key) DO UPDATE
            SET value = excluded.value, revision = excluded.revision, session = excluded.session;
        DELETE FROM {schema}.removed r USING unnest(keys, vals) AS op (key, value)
            WHERE r.key = op.key AND op.value IS NOT NULL;
        PERFORM {schema}.advance(keys);
    END IF;
    states := ARRAY[gone];
END $$;

CREATE FUNCTION {schema}.begin_session(
    expected text, lowest bigint, new_id text, ttl bigint, OUT status text, OUT reached bigint)
LANGUAGE plpgsql AS $$
BEGIN
    SELECT * INTO status, reached FROM {schema}.judge(expected, lowest);
    IF status <> 'done' THEN
        RETURN;
    END IF;
    INSERT INTO {schema}.sessions VALUES (new_id, ttl, 0) ON CONFLICT DO NOTHING;
    PERFORM pg_notify('{channel}', '');
    status := 'done';
END $$;

-- A heartbeat need not be on disk: what a crash takes back was a change of the counter too.
CREATE FUNCTION {schema}.renew_session(expected text, lowest bigint, own_id text, OUT status text, OUT reached bigint)
LANGUAGE plpgsql AS $$
BEGIN
    SELECT * INTO status, reached FROM {schema}.judge(expected, lowest);
    IF status <> 'done' THEN
        RETURN;
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE {schema}.sessions SET beat = beat + 1 WHERE id = own_id;
    status := CASE WHEN found THEN 'done' ELSE 'over' END;
END $$;

-- still_at: end it only if its counter stands there; whatever it is for its owner, who gives none.
CREATE FUNCTION {schema}.end_session(
    expected text, lowest bigint, old_id text, still_at bigint, OUT status text, OUT reached bigint)
LANGUAGE plpgsql AS $$
DECLARE
    gone bytea[];
BEGIN
    PERFORM {schema}.lock();
    SELECT * INTO status, reached FROM {schema}.judge(expected, lowest);
    IF status <> 'done' THEN
        RETURN;
    END IF;
    DELETE FROM {schema}.sessions WHERE id = old_id AND beat = coalesce(still_at, beat);
    IF NOT found THEN
        status := 'over';
        RETURN;
    END IF;
    status := 'done';
    WITH deleted AS (
        DELETE FROM {schema}.entries WHERE session = old_id RETURNING key),
    noted AS (
        INSERT INTO {schema}.removed SELECT key, reached + 1 FROM deleted
            ON CONFLICT (key) DO UPDATE SET revision = excluded.revision)
    SELECT array_agg(key) INTO gone FROM deleted;
    IF gone IS NOT NULL THEN
        reached := reached + 1;
        PERFORM {schema}.advance(gone);
    END IF;
END $$;
END $creation$
"""


class Statements:
    """The statements for the store in a schema."""

    def __init__(self, schema: str) -> None:
        self.exists = f"SELECT to_regclass('{schema}.store') IS NOT NULL AS there"
        self.look = (
            "SELECT s.identity, s.revision AS reached, x.id, x.ttl_ms, x.beat "
            f"FROM {schema}.store s LEFT JOIN {schema}.sessions x ON true"
        )
        entry = "s.identity, s.revision AS reached, e.key, e.value, e.revision, e.session"
        of_entries = f"{schema}.store s LEFT JOIN {schema}.entries e ON"
        self.get = f"SELECT {entry} FROM {of_entries} e.key = $1"
        self.page = (
            f"SELECT {entry} FROM {schema}.store s LEFT JOIN (SELECT * FROM {schema}.entries "
            "WHERE key >= $1 AND key < $2 ORDER BY key LIMIT $3) e ON true ORDER BY e.key"
        )
        self.snapshot = f"SELECT {entry} FROM {of_entries} e.key >= $1 AND e.key < $2 ORDER BY e.key"
        self.changes = (
            f"SELECT {entry}, s.floor FROM {schema}.store s LEFT JOIN ("
            f"SELECT * FROM {schema}.entries WHERE revision > $3 AND key >= $1 AND key < $2 UNION ALL "
            f"SELECT key, NULL, revision, NULL FROM {schema}.removed WHERE revision > $3 AND key >= $1 AND key < $2"
            ") e ON true ORDER BY e.revision"
        )
        self.txn = f"SELECT * FROM {schema}.txn($1, $2, $3, $4, $5, $6, $7, $8)"
        self.begin_session = f"SELECT * FROM {schema}.begin_session($1, $2, $3, $4)"
        self.renew_session = f"SELECT * FROM {schema}.renew_session($1, $2, $3)"
        self.end_session = f"SELECT * FROM {schema}.end_session($1, $2, $3, $4)"
