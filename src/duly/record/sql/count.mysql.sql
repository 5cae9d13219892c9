-- Runs and crashes of open jobs, so that a Redis that loses them goes on counting.
UPDATE JSON_TABLE(:rows, '$[*]' COLUMNS (
    topic VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin PATH '$.topic',
    id VARCHAR(200) CHARACTER SET ascii COLLATE ascii_bin PATH '$.id',
    revision BIGINT PATH '$.revision',
    attempts INTEGER PATH '$.attempts',
    crashes INTEGER PATH '$.crashes'
  )) AS given
  STRAIGHT_JOIN duly_jobs AS job
  ON job.namespace = :namespace AND job.topic = given.topic AND job.id = given.id
SET job.attempts = GREATEST(job.attempts, given.attempts), job.crashes = GREATEST(job.crashes, given.crashes)
WHERE job.revision = given.revision AND job.state = 0
  AND (job.attempts < given.attempts OR job.crashes < given.crashes)
