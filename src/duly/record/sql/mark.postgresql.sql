-- Redis has been given these rows, at these revisions.
-- The first condition, always true, makes the planner expect few rows, so that it looks each up by its key in its own
-- partition; else it reads the whole table for every batch, as long as that looks small to its statistics.
-- The last one says "is not null" in words that do not lead it to the index of what waits for the relay: there it
-- would read, for each, everything that waits.
-- Rows are locked first, because an update cannot pass over what others have locked.  A mark that is left out costs a
-- second look at its row.
WITH free AS MATERIALIZED (
  SELECT given.*
  FROM (
      SELECT CAST(:namespace AS text) AS namespace, one.*
      FROM unnest(CAST(:topic AS text[]), CAST(:id AS text[]), CAST(:revision AS bigint[]))
        AS one (topic, id, revision)
      WHERE one.id = one.id || '' OFFSET 0
    ) AS given
    JOIN duly_jobs AS job
    ON job.namespace = given.namespace AND job.topic = given.topic AND job.id = given.id
  WHERE job.revision = given.revision AND num_nonnulls(job.relay_ms) = 1
  FOR NO KEY UPDATE OF job /* unless_locked */
)
UPDATE duly_jobs AS job
SET hydrated = job.revision, generation = :generation, relay_ms = NULL
FROM free
WHERE job.namespace = free.namespace AND job.topic = free.topic AND job.id = free.id
  AND job.revision = free.revision AND num_nonnulls(job.relay_ms) = 1
