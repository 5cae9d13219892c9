-- Which jobs at these revisions nobody else has locked; they are locked now.
SELECT job.topic, job.id
FROM JSON_TABLE(:rows, '$[*]' COLUMNS (
    topic VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin PATH '$.topic',
    id VARCHAR(200) CHARACTER SET ascii COLLATE ascii_bin PATH '$.id',
    revision BIGINT PATH '$.revision'
  )) AS given
  STRAIGHT_JOIN duly_jobs AS job
  ON job.namespace = :namespace AND job.topic = given.topic AND job.id = given.id
WHERE job.revision = given.revision
FOR UPDATE SKIP LOCKED
