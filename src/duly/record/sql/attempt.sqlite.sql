-- A run, told by its token: a second time it is there already.
INSERT INTO duly_attempts (
  namespace, topic, id, token, revision, attempt, word, worker, started_ms, ended_ms, lateness_ms, error
)
VALUES (
  :namespace, :topic, :id, :token, :revision, :attempt, :word, :worker, :started_ms, :ended_ms, :lateness_ms, :error
)
ON CONFLICT DO NOTHING
