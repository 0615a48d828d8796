-- Use by user, project and partition
-- One row per user, label `project` and label `partition`. Energy is that of the packages, divided
-- among processes by their CPU time: a model.
SELECT user_name, project, partition, count(*) AS jobs,
  sum(nodes * wall_s) / 3600 AS node_hours,
  sum(cpu_hours) AS cpu_hours,
  sum(unused_cpu_hours) AS unused_cpu_hours,
  sum(gpu_hours) AS gpu_hours,
  sum(energy_j) / 3.6e6 AS energy_kwh,
  CAST(sum(file_read_bytes) AS BIGINT) AS file_read_bytes,
  CAST(sum(file_write_bytes) AS BIGINT) AS file_write_bytes
FROM jobs GROUP BY user_name, project, partition
ORDER BY cpu_hours DESC NULLS LAST, user_name NULLS LAST, project NULLS LAST, partition NULLS LAST
