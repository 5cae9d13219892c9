-- Jobs ended, if they are still open at these revisions and no later Redis was given them.
-- The first condition, always true, makes the planner expect few rows, so that it looks each up by its key in its own
-- partition; else it reads the whole table for every batch, as long as that looks small to its statistics.
UPDATE duly_jobs AS job
SET state = given.state, outcome = decode(given.outcome, 'base64'), attempts = given.attempts,
    crashes = given.crashes, started_ms = given.started_ms, ended_ms = given.ended_ms,
    lateness_ms = given.lateness_ms, changed_ms = given.ended_ms, hydrated = job.revision, relay_ms = NULL
FROM (
    SELECT CAST(:namespace AS text) AS namespace, one.*
    FROM json_to_recordset(CAST(:rows AS json)) AS one (
      topic text, id text, revision bigint, generation integer, state smallint, outcome text, attempts integer,
      crashes integer, started_ms bigint, ended_ms bigint, lateness_ms bigint
    )
    WHERE one.id = one.id || '' OFFSET 0
  ) AS given
WHERE job.namespace = given.namespace AND job.topic = given.topic AND job.id = given.id
  AND job.revision = given.revision AND job.generation <= given.generation AND job.state = 0
