-- File I/O by run and minute
-- One row per run, file system and minute since 1970, or several if the nodes are read in several parts.
SELECT run, mount, fstype, CAST(floor((unix_micros(ts) - 1) / 6e7) AS BIGINT) AS minute,
  CAST(sum(read_bytes) AS BIGINT) AS read_bytes,
  CAST(sum(write_bytes) AS BIGINT) AS write_bytes,
  CAST(sum(read_ops + write_ops) AS BIGINT) AS data_ops,
  CAST(sum(opens + unlinks + renames + mkdirs + fsyncs) AS BIGINT) AS metadata_ops,
  CAST(sum(errors) AS BIGINT) AS errors
FROM file_io WHERE tid IS NULL AND method <> 'accounting'
GROUP BY run, mount, fstype, CAST(floor((unix_micros(ts) - 1) / 6e7) AS BIGINT)
