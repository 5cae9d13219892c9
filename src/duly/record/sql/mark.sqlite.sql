-- Redis has been given this row, at this revision.
UPDATE duly_jobs
SET hydrated = revision, generation = :generation, relay_ms = NULL
WHERE namespace = :namespace AND topic = :topic AND id = :id AND revision = :revision AND relay_ms IS NOT NULL
