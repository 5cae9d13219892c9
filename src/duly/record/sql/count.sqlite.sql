-- Runs and crashes of an open job, so that a Redis that loses it goes on counting.
UPDATE duly_jobs
SET attempts = MAX(attempts, :attempts), crashes = MAX(crashes, :crashes)
WHERE namespace = :namespace AND topic = :topic AND id = :id AND revision = :revision AND state = 0
  AND (attempts < :attempts OR crashes < :crashes)
