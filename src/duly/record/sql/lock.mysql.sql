-- Rows of jobs, locked, each looked up by its key.
SELECT /* columns */
FROM JSON_TABLE(:rows, '$[*]' COLUMNS (
    topic VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin PATH '$.topic',
    id VARCHAR(200) CHARACTER SET ascii COLLATE ascii_bin PATH '$.id'
  )) AS given
  STRAIGHT_JOIN duly_jobs AS job
  ON job.namespace = :namespace AND job.topic = given.topic AND job.id = given.id
FOR UPDATE
