WITH counts AS (
  SELECT host, pid, start_ts, kind, unnest(range(len(buckets))) AS bucket, unnest(buckets) AS n
  FROM latency WHERE tid IS NULL
), sums AS (
  SELECT host, pid, start_ts, kind, bucket, sum(n) AS n FROM counts GROUP BY ALL
), ranks AS (
  SELECT *, sum(n) OVER (PARTITION BY host, pid, start_ts, kind ORDER BY bucket) AS up_to,
    sum(n) OVER (PARTITION BY host, pid, start_ts, kind) AS total
  FROM sums
), quantiles AS (
  SELECT host, pid, start_ts, kind,
    hist_middle(min(bucket) FILTER (up_to >= 0.50 * total)) AS p50_ns,
    hist_middle(min(bucket) FILTER (up_to >= 0.90 * total)) AS p90_ns,
    hist_middle(min(bucket) FILTER (up_to >= 0.99 * total)) AS p99_ns
  FROM ranks GROUP BY ALL
), totals AS (
  SELECT host, pid, start_ts, kind, sum(count)::UBIGINT AS count, sum(sum_ns) / sum(count) AS mean_ns,
    max(max_ns) AS max_ns
  FROM latency WHERE tid IS NULL GROUP BY ALL
)
SELECT t.host, t.pid, t.start_ts, p.comm, t.kind, t.count, t.mean_ns,
  least(q.p50_ns, t.max_ns) AS p50_ns, least(q.p90_ns, t.max_ns) AS p90_ns,
  least(q.p99_ns, t.max_ns) AS p99_ns, t.max_ns
FROM totals t JOIN quantiles q USING (host, pid, start_ts, kind)
  LEFT JOIN process p USING (host, pid, start_ts)