-- Runs and crashes of open jobs, so that a Redis that loses them goes on counting.
UPDATE duly_jobs AS job
SET attempts = GREATEST(job.attempts, given.attempts), crashes = GREATEST(job.crashes, given.crashes)
FROM json_to_recordset(CAST(:rows AS json)) AS given (
    topic text, id text, revision bigint, attempts integer, crashes integer
  )
WHERE job.namespace = :namespace AND job.topic = given.topic AND job.id = given.id
  AND job.revision = given.revision AND job.state = 0
  AND (job.attempts < given.attempts OR job.crashes < given.crashes)
