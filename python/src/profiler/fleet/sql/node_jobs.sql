-- Use of each node by each run
-- One row per run and node: what the processes used, and the CPU time and energy of the node while
-- the run lasted. The figures are those of `profiler summary`.
WITH of_processes AS (
  SELECT run, host,
    CAST(sum(user_ns + system_ns) AS BIGINT) AS cpu_ns,
    CAST(sum(read_bytes) AS BIGINT) AS storage_read_bytes,
    CAST(sum(write_bytes) AS BIGINT) AS storage_write_bytes
  FROM usage WHERE tid IS NULL GROUP BY run, host
), of_files AS (
  SELECT run, host,
    CAST(sum(read_bytes) AS BIGINT) AS file_read_bytes,
    CAST(sum(write_bytes) AS BIGINT) AS file_write_bytes
  FROM file_io WHERE tid IS NULL AND method <> 'accounting' GROUP BY run, host
), of_lives AS (
  SELECT run, host,
    count(*) AS processes,
    count(CASE WHEN exit_code <> 0 THEN 1 END) AS failed_processes,
    sum(energy_uj) * 1e-6 AS energy_j
  FROM process GROUP BY run, host
), of_gpus AS (
  SELECT run, host, sum(busy * seconds) / 3600 AS gpu_hours
  FROM (
    SELECT run, host, ts, sum(sm_utilization) * 1e-2 AS busy, max(interval_ns) / 1e9 AS seconds
    FROM gpu_process WHERE tid IS NULL GROUP BY run, host, ts
  ) GROUP BY run, host
), of_node AS (
  SELECT s.run, s.host,
    sum(n.cpus * n.interval_ns) / 3.6e12 AS node_cpu_hours,
    sum(n.cpus * n.interval_ns / 3.6e12 * (n.idle_ns + n.iowait_ns) / nullif(n.user_ns + n.nice_ns + n.system_ns
      + n.idle_ns + n.iowait_ns + n.irq_ns + n.softirq_ns + n.steal_ns + n.guest_ns + n.guest_nice_ns, 0)
    ) AS unused_cpu_hours
  FROM node_time s
  -- The rows of the node are in the run of the job, or in that of the node (--split-by job).
  JOIN system n ON n.host = s.host AND n.run = s.node_run
    AND (s.start_ts IS NULL OR n.ts > s.start_ts) AND (s.end_ts IS NULL OR n.ts <= s.end_ts)
  GROUP BY s.run, s.host
), of_power AS (
  SELECT s.run, s.host,
    sum(n.package_power_w * n.interval_ns / 1e9) AS package_energy_j,
    sum(n.dram_power_w * n.interval_ns / 1e9) AS dram_energy_j,
    sum(n.gpu_power_sum_w * n.interval_ns / 1e9) AS gpu_energy_j
  FROM node_time s
  JOIN timeline n ON n.host = s.host AND n.run = s.node_run
    AND (s.start_ts IS NULL OR n.ts > s.start_ts) AND (s.end_ts IS NULL OR n.ts <= s.end_ts)
  GROUP BY s.run, s.host
)
SELECT s.run, s.host, cpu_ns, node_cpu_hours, unused_cpu_hours, energy_j, package_energy_j, dram_energy_j,
  gpu_energy_j, gpu_hours, file_read_bytes, file_write_bytes, storage_read_bytes, storage_write_bytes,
  processes, failed_processes
FROM session s
LEFT JOIN of_processes p ON p.run = s.run AND p.host = s.host
LEFT JOIN of_files f ON f.run = s.run AND f.host = s.host
LEFT JOIN of_lives l ON l.run = s.run AND l.host = s.host
LEFT JOIN of_gpus g ON g.run = s.run AND g.host = s.host
LEFT JOIN of_node n ON n.run = s.run AND n.host = s.host
LEFT JOIN of_power w ON w.run = s.run AND w.host = s.host
