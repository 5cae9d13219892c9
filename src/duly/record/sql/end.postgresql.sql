-- Jobs ended, if they are still open at these revisions and no later Redis was given them.
UPDATE duly_jobs AS job
SET state = given.state, outcome = given.outcome, attempts = given.attempts, crashes = given.crashes,
    started_ms = given.started_ms, ended_ms = given.ended_ms, lateness_ms = given.lateness_ms,
    changed_ms = given.ended_ms, hydrated = job.revision, relay_ms = NULL
FROM unnest(
    CAST(:topic AS text[]), CAST(:id AS text[]), CAST(:revision AS bigint[]), CAST(:generation AS integer[]),
    CAST(:state AS smallint[]), CAST(:outcome AS bytea[]), CAST(:attempts AS integer[]), CAST(:crashes AS integer[]),
    CAST(:started_ms AS bigint[]), CAST(:ended_ms AS bigint[]), CAST(:lateness_ms AS bigint[])
  ) AS given (topic, id, revision, generation, state, outcome, attempts, crashes, started_ms, ended_ms, lateness_ms)
WHERE job.namespace = :namespace AND job.topic = given.topic AND job.id = given.id
  AND job.revision = given.revision AND job.generation <= given.generation AND job.state = 0
