-- Energy of campaigns
-- One row per label `campaign`. energy_kwh: the packages' energy that a model gives to the processes of
-- the jobs; node_energy_kwh: that of packages, memory and GPUs of their nodes meanwhile.
SELECT campaign, count(*) AS jobs, count(DISTINCT user_name) AS users,
  min(start_ts) AS start_ts, max(end_ts) AS end_ts,
  sum(nodes * wall_s) / 3600 AS node_hours, sum(cpu_hours) AS cpu_hours, sum(gpu_hours) AS gpu_hours,
  sum(energy_j) / 3.6e6 AS energy_kwh,
  sum(package_energy_j + coalesce(dram_energy_j, 0) + coalesce(gpu_energy_j, 0)) / 3.6e6 AS node_energy_kwh
FROM jobs WHERE campaign IS NOT NULL GROUP BY campaign
ORDER BY energy_kwh DESC NULLS LAST, campaign
