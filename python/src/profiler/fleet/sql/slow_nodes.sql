-- Nodes that are slower than their peers
-- The threads of a slow node are active (on CPUs, in the run queue or blocked) for longer than those of
-- the median node of the same job. slowdown: median of this ratio over the jobs of the node. Jobs on at
-- least three nodes are compared, nodes with a slowdown of at least 1.1 are listed.
WITH active AS (
  SELECT m.run, m.host,
    sum(m.oncpu_ns) / 1e9 AS oncpu_s,
    sum(m.oncpu_ns + coalesce(m.runqueue_ns, 0) + coalesce(m.blocked_ns, 0)) / 1e9 AS active_s
  FROM sched_minutes m JOIN session s ON s.run = m.run AND s.host = m.host
  WHERE NOT s.is_node GROUP BY m.run, m.host
), peers AS (
  SELECT run, median(active_s) AS active_s, median(oncpu_s) AS oncpu_s
  FROM active GROUP BY run HAVING count(*) >= 3
), compared AS (
  SELECT a.host, a.active_s / nullif(p.active_s, 0) AS ratio, a.oncpu_s / nullif(p.oncpu_s, 0) AS oncpu_ratio
  FROM active a JOIN peers p ON p.run = a.run
)
SELECT host, count(ratio) AS jobs, median(ratio) AS slowdown, min(ratio) AS least, max(ratio) AS greatest,
  median(oncpu_ratio) AS oncpu_slowdown
FROM compared GROUP BY host HAVING median(ratio) >= 1.1
ORDER BY slowdown DESC, host
