-- A job ended, if it is still open at this revision and no later Redis was given it.
-- When a run ended is told by its own row; an ending without one is a change of the job's.
UPDATE duly_jobs
SET state = :state, outcome = :outcome, attempts = :attempts, crashes = :crashes, started_ms = :started_ms,
    ended_ms = :ended_ms, lateness_ms = :lateness_ms, hydrated = revision, relay_ms = NULL,
    changed_ms = CASE WHEN :token = 0 THEN :ended_ms ELSE changed_ms END
WHERE namespace = :namespace AND topic = :topic AND id = :id
  AND revision = :revision AND generation <= :generation AND state = 0
