-- Three questions about a fleet, in SQL that DataFusion, DuckDB and Spark share. Tables: docs/fleet.md.
-- Hot memory: a quarter of the access checks found an access. Averages are over the snapshots of each host.

-- Heat by kind of memory: GiB of each host, averaged over the hosts of a workload.
WITH snapshots AS (
  SELECT host, workload, count(DISTINCT ts) AS taken FROM accesses GROUP BY host, workload
), heat AS (
  SELECT host, workload, kind,
    sum(CASE WHEN rate_permille >= 250 THEN bytes ELSE 0 END) AS hot,
    sum(CASE WHEN rate_permille BETWEEN 1 AND 249 THEN bytes ELSE 0 END) AS warm
  FROM accesses WHERE kind IS NOT NULL GROUP BY host, workload, kind
), used AS (
  SELECT host, workload, kind, avg(bytes) AS bytes FROM residency GROUP BY host, workload, kind
)
SELECT heat.workload, heat.kind, count(*) AS hosts,
  round(avg(hot / CAST(taken AS double)) / 1073741824, 1) AS hot_gib,
  round(avg(warm / CAST(taken AS double)) / 1073741824, 1) AS warm_gib,
  round(avg(used.bytes) / 1073741824, 1) AS used_gib
FROM heat JOIN snapshots ON heat.host = snapshots.host AND heat.workload = snapshots.workload
  JOIN used ON heat.host = used.host AND heat.workload = used.workload AND heat.kind = used.kind
GROUP BY heat.workload, heat.kind ORDER BY heat.workload, heat.kind;

-- Candidates for promotion: the hosts with the most hot memory in the far tier.
WITH snapshots AS (
  SELECT host, workload, count(DISTINCT ts) AS taken FROM accesses GROUP BY host, workload
)
SELECT accesses.host, accesses.workload,
  round(sum(bytes) / CAST(max(taken) AS double) / 1073741824, 1) AS hot_far_gib
FROM accesses JOIN snapshots ON accesses.host = snapshots.host AND accesses.workload = snapshots.workload
WHERE tier = 'far' AND rate_permille >= 250
GROUP BY accesses.host, accesses.workload ORDER BY hot_far_gib DESC, accesses.host LIMIT 5;

-- Candidates for demotion: near memory in use that no access check found accessed.
WITH snapshots AS (
  SELECT host, workload, count(DISTINCT ts) AS taken FROM accesses GROUP BY host, workload
), accessed AS (
  SELECT host, workload, sum(CASE WHEN tier = 'near' AND rate_permille > 0 THEN bytes ELSE 0 END) AS bytes
  FROM accesses GROUP BY host, workload
), used AS (
  SELECT host, workload, sum(bytes) / CAST(count(DISTINCT ts) AS double) AS bytes
  FROM residency WHERE tier = 'near' GROUP BY host, workload
)
SELECT used.host, used.workload,
  round((used.bytes - accessed.bytes / CAST(taken AS double)) / 1073741824, 1) AS cold_near_gib
FROM used JOIN accessed ON used.host = accessed.host AND used.workload = accessed.workload
  JOIN snapshots ON used.host = snapshots.host AND used.workload = snapshots.workload
ORDER BY cold_near_gib DESC, used.host LIMIT 5;
