"""``durabus db`` on PostgreSQL."""

from tests.cli.conftest import Durabus


def test_db_goes_from_nothing_to_verified(durabus: Durabus, postgresql_database: str) -> None:
    store = ("--store", postgresql_database)
    missing = durabus("db", "status", "--json", *store)
    assert (missing.code, missing.json["up_to_date"]) == (1, False)
    refused = durabus("db", "verify", *store)
    assert refused.code == 3
    assert "durabus db migrate" in refused.err
    applied = durabus("db", "migrate", "--json", *store).json["applied"]
    assert applied[0] == "0001_tables"
    assert durabus("db", "migrate", *store).out.startswith("up to date: ")
    status = durabus("db", "status", "--json", *store)
    assert (status.code, status.json["up_to_date"]) == (0, True)
    assert durabus("db", "verify", *store).out == "the schema is correct\n"


def test_db_sql_prints_every_step_both_ways(durabus: Durabus) -> None:
    url = "postgresql://nobody@127.0.0.1:1/nowhere?schema=events"  # nothing is asked there
    up, down = durabus("db", "sql", "--store", url), durabus("db", "sql", "--down", "--store", url)
    assert "CREATE TABLE events" in up.out
    assert "DROP TABLE" in down.out


def test_what_can_be_wrong_with_a_server_is_one_line_without_the_password(
    durabus: Durabus, postgresql_database: str
) -> None:
    address = postgresql_database.partition("@")[2]
    unreachable, refused = "nobody:hidden-word@127.0.0.1:1/nowhere", f"nobody:hidden-word@{address}"
    for place, code, reason in ((unreachable, 3, "running and reachable"), (refused, 2, "check the user and password")):
        for command in (("db", "status"), ("db", "migrate"), ("stats",)):
            answer = durabus(*command, "--store", f"postgresql://{place}")
            assert (answer.code, reason in answer.err) == (code, True), answer
            assert "hidden-word" not in answer.out + answer.err
            assert "Traceback" not in answer.err
