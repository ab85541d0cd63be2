#!/usr/bin/env python3
"""query: answers the questions of fleet.sql from the Parquet that `nearfar record --parquet` writes.

    query.py DIR [datafusion|duckdb]

Needs one of the packages datafusion (with pyarrow) or duckdb. Spark runs the same file: spark.read.parquet(DIR + "/accesses")
finds the partitions by itself.
"""

import sys
from pathlib import Path
from typing import Any, Callable, Iterator

Rows = tuple[list[str], list[tuple[Any, ...]]]


def datafusion_engine(folder: Path) -> Callable[[str], Rows]:
    import datafusion
    import pyarrow

    context = datafusion.SessionContext()
    partitions = [(name, pyarrow.string()) for name in ("host", "date", "workload")]
    for table in ("accesses", "residency"):
        context.register_parquet(table, str(folder / table), table_partition_cols=partitions)

    def ask(sql: str) -> Rows:
        table = context.sql(sql).to_arrow_table()
        return table.column_names, [tuple(row.values()) for row in table.to_pylist()]

    return ask


def duckdb_engine(folder: Path) -> Callable[[str], Rows]:
    import duckdb

    connection = duckdb.connect()
    for table in ("accesses", "residency"):
        files = str(folder / table / "**" / "*.parquet").replace("'", "''")
        connection.execute(f"CREATE VIEW {table} AS SELECT * FROM read_parquet('{files}', hive_partitioning = true)")

    def ask(sql: str) -> Rows:
        result = connection.execute(sql)
        return [column[0] for column in result.description], result.fetchall()

    return ask


ENGINES = {"datafusion": datafusion_engine, "duckdb": duckdb_engine}


def questions(sql: str) -> Iterator[tuple[str, str]]:
    """The title of each statement, from the comment before it, and the statement."""
    for statement in sql.split(";\n"):
        lines = statement.strip().splitlines()
        titles = [line[3:] for line in lines if line.startswith("-- ")]
        if lines:
            yield titles[-1], "\n".join(line for line in lines if not line.startswith("--"))


def main() -> None:
    name = sys.argv[2] if len(sys.argv) == 3 else "datafusion"
    if len(sys.argv) not in (2, 3) or name not in ENGINES:
        sys.exit(__doc__)
    try:
        ask = ENGINES[name](Path(sys.argv[1]))
    except ImportError as error:
        sys.exit(f"query: {error}; install it with: python3 -m pip install -r examples/fleet/requirements.txt")
    for title, sql in questions((Path(__file__).parent / "fleet.sql").read_text()):
        names, rows = ask(sql)
        lines = [names] + [[str(value) for value in row] for row in rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(names))]
        print(title)
        for line in lines:
            print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())
        print()


if __name__ == "__main__":
    main()
