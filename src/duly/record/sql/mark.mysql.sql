-- Redis has been given these rows, at these revisions.
UPDATE JSON_TABLE(:rows, '$[*]' COLUMNS (
    topic VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin PATH '$.topic',
    id VARCHAR(200) CHARACTER SET ascii COLLATE ascii_bin PATH '$.id',
    revision BIGINT PATH '$.revision'
  )) AS given
  STRAIGHT_JOIN duly_jobs AS job
  ON job.namespace = :namespace AND job.topic = given.topic AND job.id = given.id
SET job.hydrated = job.revision, job.generation = :generation, job.relay_ms = NULL
WHERE job.revision = given.revision AND job.relay_ms IS NOT NULL
