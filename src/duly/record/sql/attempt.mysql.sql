-- One row for each run, told by its token: a second time it is there already.
INSERT INTO duly_attempts (
  namespace, topic, id, token, revision, attempt, word, worker, started_ms, ended_ms, lateness_ms, error
)
SELECT :namespace, given.topic, given.id, given.token, given.revision, given.attempt, given.word, given.worker,
  given.started_ms, given.ended_ms, given.lateness_ms, FROM_BASE64(given.error)
FROM JSON_TABLE(:rows, '$[*]' COLUMNS (
    topic VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin PATH '$.topic',
    id VARCHAR(200) CHARACTER SET ascii COLLATE ascii_bin PATH '$.id',
    token BIGINT PATH '$.token',
    revision BIGINT PATH '$.revision',
    attempt INTEGER PATH '$.attempt',
    word VARCHAR(16) PATH '$.word',
    worker VARCHAR(200) CHARACTER SET ascii COLLATE ascii_bin PATH '$.worker',
    started_ms BIGINT PATH '$.started_ms',
    ended_ms BIGINT PATH '$.ended_ms',
    lateness_ms BIGINT PATH '$.lateness_ms',
    error LONGTEXT CHARACTER SET ascii PATH '$.error'
  )) AS given
ON DUPLICATE KEY UPDATE duly_attempts.namespace = duly_attempts.namespace
