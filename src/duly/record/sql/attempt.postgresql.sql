-- One row for each run, told by its token: a second time it is there already.
INSERT INTO duly_attempts (
  namespace, topic, id, token, revision, attempt, word, worker, started_ms, ended_ms, lateness_ms, error
)
SELECT :namespace, given.*
FROM unnest(
    CAST(:topic AS text[]), CAST(:id AS text[]), CAST(:token AS bigint[]), CAST(:revision AS bigint[]),
    CAST(:attempt AS integer[]), CAST(:word AS text[]), CAST(:worker AS text[]), CAST(:started_ms AS bigint[]),
    CAST(:ended_ms AS bigint[]), CAST(:lateness_ms AS bigint[]), CAST(:error AS bytea[])
  ) AS given
ON CONFLICT DO NOTHING
