-- Redis has been given these rows, at these revisions.
UPDATE duly_jobs AS job
SET hydrated = job.revision, generation = :generation, relay_ms = NULL
FROM json_to_recordset(CAST(:rows AS json)) AS given (topic text, id text, revision bigint)
WHERE job.namespace = :namespace AND job.topic = given.topic AND job.id = given.id
  AND job.revision = given.revision AND job.relay_ms IS NOT NULL
