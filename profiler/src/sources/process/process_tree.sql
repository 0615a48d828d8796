WITH RECURSIVE lives AS (
  -- A continued run can have a process twice.
  SELECT DISTINCT ON (host, pid, start_ts) * FROM process ORDER BY ts DESC
), children AS (
  SELECT c.*, p.start_ts AS parent_start_ts
  FROM lives c ASOF LEFT JOIN lives p
    ON c.host = p.host AND c.ppid = p.pid AND c.start_ts >= p.start_ts
), tree AS (
  SELECT host, pid, start_ts, end_ts, ppid, parent_start_ts, pid AS root_pid,
    start_ts AS root_start_ts, 0::UINTEGER AS depth, started_by, comm, cmdline, '' AS before
  FROM children WHERE parent_start_ts IS NULL
  UNION ALL
  SELECT c.host, c.pid, c.start_ts, c.end_ts, c.ppid, c.parent_start_ts, t.root_pid,
    t.root_start_ts, t.depth + 1, c.started_by, c.comm, c.cmdline,
    t.before || coalesce(c.started_by, t.comm) || ' > '
  FROM children c JOIN tree t
    ON c.host = t.host AND c.ppid = t.pid AND c.parent_start_ts = t.start_ts
)
SELECT * EXCLUDE (before), before || comm AS path FROM tree