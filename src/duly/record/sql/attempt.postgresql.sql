-- One row for each run, told by its token: a second time it is there already.
INSERT INTO duly_attempts (
  namespace, topic, id, token, revision, attempt, word, worker, started_ms, ended_ms, lateness_ms, error
)
SELECT :namespace, given.topic, given.id, given.token, given.revision, given.attempt, given.word, given.worker,
  given.started_ms, given.ended_ms, given.lateness_ms, decode(given.error, 'base64')
FROM json_to_recordset(CAST(:rows AS json)) AS given (
    topic text, id text, token bigint, revision bigint, attempt integer, word text, worker text,
    started_ms bigint, ended_ms bigint, lateness_ms bigint, error text
  )
ON CONFLICT DO NOTHING
