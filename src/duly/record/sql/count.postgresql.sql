-- Runs and crashes of open jobs, so that a Redis that loses them goes on counting.
-- The first condition, always true, makes the planner expect few rows, so that it looks each up by its key in its own
-- partition; else it reads the whole table for every batch, as long as that looks small to its statistics.
-- Rows are locked first, because an update cannot pass over what others have locked.
WITH free AS MATERIALIZED (
  SELECT given.*
  FROM (
      SELECT CAST(:namespace AS text) AS namespace, one.*
      FROM unnest(
          CAST(:topic AS text[]), CAST(:id AS text[]), CAST(:revision AS bigint[]), CAST(:attempts AS integer[]),
          CAST(:crashes AS integer[])
        ) AS one (topic, id, revision, attempts, crashes)
      WHERE one.id = one.id || '' OFFSET 0
    ) AS given
    JOIN duly_jobs AS job
    ON job.namespace = given.namespace AND job.topic = given.topic AND job.id = given.id
  WHERE job.revision = given.revision AND job.state = 0
    AND (job.attempts < given.attempts OR job.crashes < given.crashes)
  FOR NO KEY UPDATE OF job /* unless_locked */
)
UPDATE duly_jobs AS job
SET attempts = GREATEST(job.attempts, free.attempts), crashes = GREATEST(job.crashes, free.crashes)
FROM free
WHERE job.namespace = free.namespace AND job.topic = free.topic AND job.id = free.id
  AND job.revision = free.revision AND job.state = 0
