-- Anomalies against the history of the same job
-- A job is compared with up to 30 earlier jobs of the same user, name (or program) and number of nodes.
-- Listed: figures that differ from their median by more than five times the median absolute deviation
-- (at least by 25 %), if there are five earlier jobs.
WITH figure AS (
  SELECT run, 'wall_s' AS figure, wall_s AS value FROM jobs
  UNION ALL SELECT run, 'cpu_hours' AS figure, cpu_hours AS value FROM jobs
  UNION ALL SELECT run, 'cpu_efficiency' AS figure, cpu_efficiency AS value FROM jobs
  UNION ALL SELECT run, 'energy_j' AS figure, energy_j AS value FROM jobs
  UNION ALL SELECT run, 'file_read_bytes' AS figure, CAST(file_read_bytes AS DOUBLE) AS value FROM jobs
  UNION ALL SELECT run, 'file_write_bytes' AS figure, CAST(file_write_bytes AS DOUBLE) AS value FROM jobs
), placed AS (
  SELECT f.run, coalesce(j.user_name, '') AS user_name, coalesce(j.name, j.program, '') AS name, j.nodes,
    f.figure, f.value,
    row_number() OVER (PARTITION BY coalesce(j.user_name, ''), coalesce(j.name, j.program, ''), j.nodes, f.figure
      ORDER BY j.start_ts, f.run) AS place
  FROM figure f JOIN jobs j ON j.run = f.run WHERE f.value IS NOT NULL
), past AS (
  SELECT n.run, n.user_name, n.name, n.nodes, n.figure, n.value, b.value AS past
  FROM placed n JOIN placed b ON b.user_name = n.user_name AND b.name = n.name AND b.nodes = n.nodes
    AND b.figure = n.figure AND b.place < n.place AND b.place >= n.place - 30
), usual AS (
  SELECT run, user_name, name, nodes, figure, value, count(*) AS earlier_jobs, median(past) AS usual
  FROM past GROUP BY run, user_name, name, nodes, figure, value HAVING count(*) >= 5
), spread AS (
  SELECT p.run, p.figure, median(abs(p.past - u.usual)) AS deviation
  FROM past p JOIN usual u ON u.run = p.run AND u.figure = p.figure GROUP BY p.run, p.figure
)
SELECT u.run, user_name, name, nodes, u.figure, value, usual, value / nullif(usual, 0) AS ratio,
  deviation, earlier_jobs
FROM usual u JOIN spread s ON s.run = u.run AND s.figure = u.figure
WHERE abs(value - usual) > greatest(5 * deviation, 0.25 * abs(usual))
ORDER BY abs(value - usual) / nullif(abs(usual), 0) DESC NULLS FIRST, u.run, u.figure
