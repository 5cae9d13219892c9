-- Redis has been given these rows, at these revisions.
UPDATE duly_jobs AS job
SET hydrated = job.revision, generation = :generation, relay_ms = NULL
FROM unnest(CAST(:topic AS text[]), CAST(:id AS text[]), CAST(:revision AS bigint[])) AS given (topic, id, revision)
WHERE job.namespace = :namespace AND job.topic = given.topic AND job.id = given.id
  AND job.revision = given.revision AND job.relay_ms IS NOT NULL
