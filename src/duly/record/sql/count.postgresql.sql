-- Runs and crashes of open jobs, so that a Redis that loses them goes on counting.
UPDATE duly_jobs AS job
SET attempts = GREATEST(job.attempts, given.attempts), crashes = GREATEST(job.crashes, given.crashes)
FROM unnest(
    CAST(:topic AS text[]), CAST(:id AS text[]), CAST(:revision AS bigint[]),
    CAST(:attempts AS integer[]), CAST(:crashes AS integer[])
  ) AS given (topic, id, revision, attempts, crashes)
WHERE job.namespace = :namespace AND job.topic = given.topic AND job.id = given.id
  AND job.revision = given.revision AND job.state = 0
  AND (job.attempts < given.attempts OR job.crashes < given.crashes)
