-- File-system pressure by job and minute
-- One row per job, file system and minute, with the share of the job in the requests of all jobs.
WITH total AS (
  SELECT run, mount, fstype, minute,
    sum(read_bytes) AS read_bytes, sum(write_bytes) AS write_bytes,
    sum(data_ops) AS data_ops, sum(metadata_ops) AS metadata_ops, sum(errors) AS errors
  FROM file_minutes WHERE mount IS NOT NULL GROUP BY run, mount, fstype, minute
)
SELECT timestamp_micros(t.minute * 60000000) AS minute, mount, fstype, t.run, j.user_name,
  read_bytes / 60 AS read_bytes_per_s, write_bytes / 60 AS write_bytes_per_s,
  data_ops / 60 AS data_ops_per_s, metadata_ops / 60 AS metadata_ops_per_s,
  (data_ops + metadata_ops) / nullif(sum(data_ops + metadata_ops) OVER (PARTITION BY mount, fstype, t.minute), 0) AS share,
  CAST(errors AS BIGINT) AS errors
FROM total t JOIN jobs j ON j.run = t.run
ORDER BY t.minute, mount, fstype, run
