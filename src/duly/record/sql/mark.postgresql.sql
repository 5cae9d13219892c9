-- Redis has been given these rows, at these revisions.
-- The first condition, always true, makes the planner expect few rows, so that it looks each up by its key in its own
-- partition; else it reads the whole table for every batch, as long as that looks small to its statistics.
-- The last one says "is not null" in words that do not lead it to the index of what waits for the relay: there it
-- would read, for each, everything that waits.
UPDATE duly_jobs AS job
SET hydrated = job.revision, generation = :generation, relay_ms = NULL
FROM (
    SELECT CAST(:namespace AS text) AS namespace, one.*
    FROM unnest(CAST(:topic AS text[]), CAST(:id AS text[]), CAST(:revision AS bigint[]))
      AS one (topic, id, revision)
    WHERE one.id = one.id || '' OFFSET 0
  ) AS given
WHERE job.namespace = given.namespace AND job.topic = given.topic AND job.id = given.id
  AND job.revision = given.revision AND num_nonnulls(job.relay_ms) = 1
