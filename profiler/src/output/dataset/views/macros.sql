
-- Least duration of a bucket of a histogram, ns; the first bucket is 0
CREATE OR REPLACE MACRO hist_edge(bucket) AS
  CASE WHEN bucket < 1 THEN 0 ELSE (4 + (bucket - 1) % 4) * 2 ** ((bucket - 1) // 4 + 4) END;
-- Middle of a bucket, ns: within 12.5 % of its durations, except below 64 ns
CREATE OR REPLACE MACRO hist_middle(bucket) AS
  CASE WHEN bucket >= 136 THEN hist_edge(bucket) ELSE (hist_edge(bucket) + hist_edge(bucket + 1)) / 2 END;
-- Quantile q (0 to 1) of a histogram, ns: hist_quantile(buckets, 0.99)
CREATE OR REPLACE MACRO hist_quantile(buckets, q) AS
  hist_middle(list_min([i - 1 FOR i IN range(1, len(buckets) + 1)
    IF list_sum(buckets[:i]) >= greatest(q * list_sum(buckets), 1)]));
-- Sum of histograms: hist_quantile(hist_sum(list(buckets)), 0.99)
CREATE OR REPLACE MACRO hist_sum(histograms) AS
  [list_sum([coalesce(h[i], 0) FOR h IN histograms]) FOR i IN range(1, list_max([len(h) FOR h IN histograms]) + 1)];
