-- The twenty least efficient jobs
-- Jobs of at least a minute, by the share of the CPU time of their nodes that they used.
SELECT run, user_name, project, partition, program, nodes, wall_s, cpu_efficiency, cpu_hours, unused_cpu_hours
FROM jobs WHERE wall_s >= 60 AND cpu_efficiency IS NOT NULL
ORDER BY cpu_efficiency, unused_cpu_hours DESC, run LIMIT 20
