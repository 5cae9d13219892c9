-- A job ended, if it is still open at this revision and no later Redis was given it.
UPDATE duly_jobs
SET state = :state, outcome = :outcome, attempts = :attempts, crashes = :crashes, started_ms = :started_ms,
    ended_ms = :ended_ms, lateness_ms = :lateness_ms, changed_ms = :ended_ms, hydrated = revision, relay_ms = NULL
WHERE namespace = :namespace AND topic = :topic AND id = :id
  AND revision = :revision AND generation <= :generation AND state = 0
