-- Redis has been given these rows, at these revisions.
-- The first condition, always true, makes the planner expect few rows, so that it looks each up by its key in its own
-- partition; else it reads the whole table for every batch, as long as that looks small to its statistics.
UPDATE duly_jobs AS job
SET hydrated = job.revision, generation = :generation, relay_ms = NULL
FROM (
    SELECT CAST(:namespace AS text) AS namespace, one.*
    FROM json_to_recordset(CAST(:rows AS json)) AS one (
      topic text, id text, revision bigint
    )
    WHERE one.id = one.id || '' OFFSET 0
  ) AS given
WHERE job.namespace = given.namespace AND job.topic = given.topic AND job.id = given.id
  AND job.revision = given.revision AND job.relay_ms IS NOT NULL
