-- Jobs ended, if they are still open at these revisions and no later Redis was given them.
-- When a run ended is told by its own row; an ending without one is a change of the job's.
UPDATE JSON_TABLE(:rows, '$[*]' COLUMNS (
    topic VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin PATH '$.topic',
    id VARCHAR(200) CHARACTER SET ascii COLLATE ascii_bin PATH '$.id',
    token BIGINT PATH '$.token',
    revision BIGINT PATH '$.revision',
    generation INTEGER PATH '$.generation',
    state SMALLINT PATH '$.state',
    outcome LONGTEXT CHARACTER SET ascii PATH '$.outcome',
    attempts INTEGER PATH '$.attempts',
    crashes INTEGER PATH '$.crashes',
    started_ms BIGINT PATH '$.started_ms',
    ended_ms BIGINT PATH '$.ended_ms',
    lateness_ms BIGINT PATH '$.lateness_ms'
  )) AS given
  STRAIGHT_JOIN duly_jobs AS job
  ON job.namespace = :namespace AND job.topic = given.topic AND job.id = given.id
SET job.state = given.state, job.outcome = FROM_BASE64(given.outcome), job.attempts = given.attempts,
    job.crashes = given.crashes, job.started_ms = given.started_ms, job.ended_ms = given.ended_ms,
    job.lateness_ms = given.lateness_ms, job.hydrated = job.revision, job.relay_ms = NULL,
    job.changed_ms = CASE WHEN given.token = 0 THEN given.ended_ms ELSE job.changed_ms END
WHERE job.revision = given.revision AND job.generation <= given.generation AND job.state = 0
