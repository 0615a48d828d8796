-- Accounting of each job
-- One row per job. cpu_efficiency: CPU time of the job per CPU time of its nodes while it ran.
-- unused_cpu_hours: idle CPUs of these nodes × time; on a shared node, each job has them.
WITH program AS (
  SELECT run, comm AS program FROM (
    SELECT run, comm,
      row_number() OVER (PARTITION BY run ORDER BY sum(oncpu_ns) DESC NULLS LAST, comm) AS place
    FROM programs GROUP BY run, comm
  ) WHERE place = 1
), job AS (
  SELECT s.run,
    min(s.job_id) AS job_id, min(s.user_name) AS user_name, min(s.project) AS project,
    min(s.partition) AS partition, min(s.campaign) AS campaign, min(s.name) AS name,
    min(s.start_ts) AS start_ts, max(s.end_ts) AS end_ts, count(*) AS nodes,
    sum(n.cpu_ns) / 3.6e12 AS cpu_hours,
    sum(n.node_cpu_hours) AS node_cpu_hours,
    sum(n.unused_cpu_hours) AS unused_cpu_hours,
    sum(n.gpu_hours) AS gpu_hours,
    sum(n.energy_j) AS energy_j,
    sum(n.package_energy_j) AS package_energy_j,
    sum(n.dram_energy_j) AS dram_energy_j,
    sum(n.gpu_energy_j) AS gpu_energy_j,
    CAST(sum(n.file_read_bytes) AS BIGINT) AS file_read_bytes,
    CAST(sum(n.file_write_bytes) AS BIGINT) AS file_write_bytes,
    CAST(sum(n.storage_read_bytes) AS BIGINT) AS storage_read_bytes,
    CAST(sum(n.storage_write_bytes) AS BIGINT) AS storage_write_bytes,
    CAST(sum(n.processes) AS BIGINT) AS processes,
    CAST(sum(n.failed_processes) AS BIGINT) AS failed_processes
  FROM session s JOIN node_jobs n ON n.run = s.run AND n.host = s.host
  WHERE NOT s.is_node
  GROUP BY s.run
)
SELECT j.run, job_id, user_name, project, partition, campaign, name, program, start_ts, end_ts,
  (unix_micros(end_ts) - unix_micros(start_ts)) / 1e6 AS wall_s, nodes,
  cpu_hours, node_cpu_hours, unused_cpu_hours, cpu_hours / nullif(node_cpu_hours, 0) AS cpu_efficiency,
  gpu_hours, energy_j, package_energy_j, dram_energy_j, gpu_energy_j,
  file_read_bytes, file_write_bytes, storage_read_bytes, storage_write_bytes, processes, failed_processes
FROM job j LEFT JOIN program p ON p.run = j.run
ORDER BY run
