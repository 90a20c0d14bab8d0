-- Roles with the least rights on the ledger, for deployments in which not everybody is the owner of its tables.
--
-- Run it as the owner, who needs CREATEROLE for it, after each `fencepost migrate`, in either way; twice does no harm:
--     fencepost migrate --roles
--     psql "$FENCEPOST_LEDGER_DSN" -f "$(python -c 'import fencepost_ledger; print(fencepost_ledger.ROLES_SQL)')"
-- Then give them to those who log in:
--     CREATE ROLE worker_1 LOGIN PASSWORD '…' IN ROLE fencepost_worker;
--     CREATE ROLE planner LOGIN PASSWORD '…' IN ROLE fencepost_orchestrator, fencepost_every_org;
--     CREATE ROLE ann LOGIN PASSWORD '…' IN ROLE fencepost_operator, fencepost_every_org;
--     CREATE ROLE acme_app LOGIN PASSWORD '…' IN ROLE fencepost_reader;
--     INSERT INTO fencepost.org_roles (role, org_id) VALUES ('acme_app', 'acme');
--
-- What a role may do is in the grants below; which rows it sees is in fencepost.org_roles, or all of them as a member of
-- fencepost_every_org or fencepost_worker. `isolation.py` says how, and how far that holds.

BEGIN;

-- The lock of `fencepost migrate`: one at a time.
SELECT pg_advisory_xact_lock(7102035113);

DO $$
DECLARE
    name text;
BEGIN
    IF NOT pg_has_role((SELECT relowner FROM pg_class WHERE oid = 'fencepost.calls'::regclass), 'USAGE') THEN
        RAISE insufficient_privilege USING MESSAGE = 'only the owner of the tables can give rights on them';
    END IF;
    FOREACH name IN ARRAY ARRAY['worker', 'orchestrator', 'operator', 'reader', 'every_org'] LOOP
        IF to_regrole('fencepost_' || name) IS NULL THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', 'fencepost_' || name);
        END IF;
    END LOOP;
END
$$;

GRANT USAGE ON SCHEMA fencepost
    TO fencepost_worker, fencepost_orchestrator, fencepost_operator, fencepost_reader;
GRANT SELECT ON ALL TABLES IN SCHEMA fencepost
    TO fencepost_worker, fencepost_orchestrator, fencepost_operator, fencepost_reader;

-- The worker: everything but who an execution or a call belongs to. Without FENCEPOST_DEFAULT_ORG it opens no
-- execution either, and the INSERT can be revoked.
GRANT INSERT (execution_id, org_id) ON fencepost.executions TO fencepost_worker;
GRANT INSERT, UPDATE (generation, raised_at), DELETE ON fencepost.generations TO fencepost_worker;
GRANT INSERT, UPDATE (expires_at), DELETE ON fencepost.events TO fencepost_worker;
GRANT INSERT, DELETE ON fencepost.calls TO fencepost_worker;
GRANT UPDATE (generation, attempt, state, retryable, holder, lease_until, event_id, tool_call_id, metadata, result,
    result_ref, error, decided_by, decided_reason, decided_evidence, decided_at, decided_attempt, claimed_by,
    claimed_generation, claimed_index, revision, started_at, finished_at, expires_at)
    ON fencepost.calls TO fencepost_worker;
GRANT INSERT, UPDATE (revision, acknowledged, since), DELETE ON fencepost.unsettled TO fencepost_worker;
GRANT INSERT, UPDATE (expires_at), DELETE ON fencepost.blobs TO fencepost_worker;

-- The orchestrator: opens and closes executions, raises generations. So does the operator, who rules on calls as well.
GRANT INSERT (execution_id, org_id, on_divergence), UPDATE (closed_at, on_divergence) ON fencepost.executions
    TO fencepost_orchestrator, fencepost_operator;
GRANT INSERT (execution_id, node_id, generation), UPDATE (generation, raised_at) ON fencepost.generations
    TO fencepost_orchestrator, fencepost_operator;
GRANT UPDATE (state, retryable, result, result_ref, error, decided_by, decided_reason, decided_evidence, decided_at,
    decided_attempt, revision, finished_at, expires_at) ON fencepost.calls TO fencepost_operator;
GRANT INSERT (execution_id, key, revision), UPDATE (revision, since), DELETE ON fencepost.unsettled
    TO fencepost_operator;

-- A worker sees every row, and its plans are those of the owner: beside a policy that is true the others fall away.
DO $$
DECLARE
    name text;
BEGIN
    FOR name IN
        SELECT tablename FROM pg_policies WHERE schemaname = 'fencepost' AND policyname = 'org'
        EXCEPT SELECT tablename FROM pg_policies WHERE schemaname = 'fencepost' AND policyname = 'worker'
    LOOP
        EXECUTE format('CREATE POLICY worker ON fencepost.%I TO fencepost_worker USING (true)', name);
    END LOOP;
END
$$;

COMMIT;
