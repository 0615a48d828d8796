-- Run-queue interference between jobs of a node
-- One row per job and neighbour, over the minutes in which both ran on the same node: waited_shared is
-- the share of the run queue in the time on CPUs and in the run queue, waited_alone the same in the
-- minutes in which the job had its node to itself.
WITH load AS (
  SELECT m.run, m.host, m.minute, m.oncpu_ns, m.runqueue_ns,
    count(*) OVER (PARTITION BY m.host, m.minute) AS jobs
  FROM sched_minutes m JOIN session s ON s.run = m.run AND s.host = m.host
  WHERE NOT s.is_node AND m.oncpu_ns > 0
), alone AS (
  SELECT run, sum(runqueue_ns) / nullif(sum(oncpu_ns + runqueue_ns), 0.0) AS waited_alone
  FROM load WHERE jobs = 1 GROUP BY run
), pair AS (
  SELECT a.run, b.run AS neighbour, count(*) AS node_minutes,
    sum(a.oncpu_ns) / 1e9 AS oncpu_s, sum(a.runqueue_ns) / 1e9 AS runqueue_s, sum(b.oncpu_ns) / 1e9 AS neighbour_s,
    sum(a.runqueue_ns) / nullif(sum(a.oncpu_ns + a.runqueue_ns), 0.0) AS waited_shared
  FROM load a JOIN load b ON b.host = a.host AND b.minute = a.minute AND b.run <> a.run
  WHERE a.jobs > 1 AND b.jobs > 1
  GROUP BY a.run, b.run
)
SELECT p.run, neighbour, node_minutes, oncpu_s, runqueue_s, neighbour_s, waited_shared, waited_alone
FROM pair p LEFT JOIN alone a ON a.run = p.run
ORDER BY runqueue_s DESC NULLS LAST, p.run, neighbour
