-- Scheduler states by node and minute
-- One row per run, node and minute since 1970, which includes its end: time of threads on CPUs, in the run queue and blocked.
SELECT run, host, CAST(floor((unix_micros(ts) - 1) / 6e7) AS BIGINT) AS minute,
  CAST(sum(oncpu_ns) AS BIGINT) AS oncpu_ns,
  CAST(sum(runqueue_ns) AS BIGINT) AS runqueue_ns,
  CAST(sum(blocked_ns) AS BIGINT) AS blocked_ns
FROM sched WHERE tid IS NULL
GROUP BY run, host, CAST(floor((unix_micros(ts) - 1) / 6e7) AS BIGINT)
