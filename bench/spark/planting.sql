-- As many rows as jobs of a record that the queue has been given, the first ones not as the queue has them.
-- Differences stand in blocks of `planted` rows each, in the order of planting.KINDS.
INSERT INTO duly_jobs (
  namespace, topic, id, revision, request, state, due_ms, relay_ms, hydrated, generation, lane, ttr_ms, expires_ms,
  retain_s, max_crashes, attempts, crashes, payload, envelope, outcome, accepted_ms, changed_ms, ended_ms
)
SELECT
  :namespace, CASE WHEN n / :planted = 5 THEN 'now' ELSE 'reminder' END, 'customer-' || n,
  CAST(:revision AS bigint) + CASE WHEN n / :planted = 1 THEN 5 ELSE 0 END, CAST('reques' AS bytea),
  CASE WHEN n / :planted = 2 THEN 3 ELSE 0 END,
  CASE
    WHEN n / :planted = 5 THEN CAST(:past_ms AS bigint)
    ELSE CAST(:due_ms AS bigint) + n * 7 + CASE WHEN n / :planted = 3 THEN 3600000 ELSE 0 END
  END,
  NULL, CAST(:revision AS bigint), CAST(:generation AS int), 0, 0, 0, NULL, 0, 0, 0,
  convert_to(CASE WHEN n / :planted = 4 THEN '"another"' ELSE
    '{"customer":' || n || ',"template":"reminder","locale":"de","text":"Please remember this"}' END, 'UTF8'),
  '', NULL, CAST(:past_ms AS bigint), CAST(:past_ms AS bigint),
  CASE WHEN n / :planted = 2 THEN CAST(:past_ms AS bigint) END
FROM generate_series(0, CAST(:rows AS bigint) - 1) AS n
