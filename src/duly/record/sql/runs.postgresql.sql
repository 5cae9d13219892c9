-- Runs ended: one row for each, told by its token, which a second time is there already; and those jobs that ended with
-- them, if they are still open at these revisions and no later Redis was given them.
-- In one statement, as what is given is read once; what is the same in all rows is said once, too.
-- The condition on ids, always true, makes the planner expect few rows, so that it looks each up by its key in its own
-- partition; else it reads the whole table for every batch, as long as that looks small to its statistics.
WITH given AS MATERIALIZED (
  SELECT /* chosen */
  FROM unnest(/* arrays */) AS many (/* apart */)
), tried AS (
  INSERT INTO duly_attempts (
    namespace, topic, id, token, revision, attempt, word, worker, started_ms, ended_ms, lateness_ms, error
  )
  SELECT :namespace, topic, id, token, revision, attempt, word, worker, started_ms, ended_ms, lateness_ms,
    CASE WHEN state <> :succeeded THEN NULLIF(outcome, '') END  -- a result is in the row of its job
  FROM given
  WHERE token <> 0
  /* unless_there */
), free AS MATERIALIZED (  -- locked first, because an update cannot pass over what others have locked
  SELECT ended.*
  FROM (
      SELECT CAST(:namespace AS text) AS namespace, given.*
      FROM given
      WHERE given.state >= :succeeded AND given.id = given.id || '' OFFSET 0
    ) AS ended
    JOIN duly_jobs AS job
    ON job.namespace = ended.namespace AND job.topic = ended.topic AND job.id = ended.id
  WHERE job.revision = ended.revision AND job.generation <= ended.generation AND job.state = 0
  FOR NO KEY UPDATE OF job /* unless_locked */
)
UPDATE duly_jobs AS job
SET state = ended.state, outcome = NULLIF(ended.outcome, ''), attempts = ended.attempts, crashes = ended.crashes,
    started_ms = NULLIF(ended.started_ms, 0), ended_ms = ended.ended_ms, lateness_ms = ended.lateness_ms,
    hydrated = job.revision, relay_ms = NULL,
    changed_ms = CASE WHEN ended.token = 0 THEN ended.ended_ms ELSE job.changed_ms END
FROM free AS ended
WHERE job.namespace = ended.namespace AND job.topic = ended.topic AND job.id = ended.id
  AND job.revision = ended.revision AND job.generation <= ended.generation AND job.state = 0
