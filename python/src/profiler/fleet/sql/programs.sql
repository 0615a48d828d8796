-- CPU time of each program
-- One row per run, node and command name.
SELECT run, host, comm, CAST(sum(oncpu_ns) AS BIGINT) AS oncpu_ns, count(*) AS processes
FROM process GROUP BY run, host, comm
