"""What a URL may contain, and the error for a wrong one, which never shows the password."""

import pytest

from durabus.errors import ConfigurationError
from durabus.stores.postgresql.address import parse_url
from durabus.stores.postgresql.store import PostgreSQLStore

URL = "postgresql://bob:s3cret@db.example:6543/shop"


def test_a_url_names_the_server_and_the_user() -> None:
    address = parse_url(f"{URL}?schema=orders&pool=3&application_name=web")
    assert (address.host, address.port, address.database) == ("db.example", 6543, "shop")
    assert (address.user, address.password) == ("bob", "s3cret")
    assert (address.schema, address.pool, address.application_name) == ("orders", 3, "web")


def test_what_is_not_said_has_a_default() -> None:
    address = parse_url("postgresql://db.example/shop")
    assert (address.port, address.user, address.password, address.schema) == (5432, None, None, "durabus")
    assert (address.listen, address.prepared) == (True, True)


def test_special_characters_are_escaped() -> None:
    address = parse_url("postgresql://b%40b:p%2Fw%3F@db/my%20shop")
    assert (address.user, address.password, address.database) == ("b@b", "p/w?", "my shop")


def test_behind_a_pooler_the_store_does_not_prepare_statements_or_listen() -> None:
    address = parse_url(f"{URL}?pooler=on")
    assert (address.listen, address.prepared) == (False, False)
    assert parse_url(f"{URL}?pooler=on&listen=on").listen
    assert not parse_url(f"{URL}?listen=off").listen


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("?shema=x", "no such option.*shema.*there are.*schema"),
        ("?schema=a&schema=b", "given twice"),
        ("?schema=Big", "schema='Big'.*lower-case"),
        ("?schema=x;drop", "schema="),
        (f"?schema={'x' * 60}", "1 to 48"),
        ("?pool=0", "pool='0'.*from 1"),
        ("?pool=many", "pool='many'"),
        ("?listen=yes", "listen='yes'.*on or off"),
        ("?sslmode=maybe", "sslmode='maybe'.*verify-full"),
        ("?connect_timeout=0", "connect_timeout='0'"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_right(wrong: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        parse_url(URL + wrong)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("url", ["postgresql://", "postgresql://bob:s3cret@db", "postgresql://bob:s3cret@db:x/shop"])
def test_an_incomplete_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_url(url)
    assert "s3cret" not in str(caught.value)


def test_nothing_shows_the_password() -> None:
    address = parse_url(URL)
    store = PostgreSQLStore.from_url(URL)
    for shown in (address.shown, repr(address), str(address), repr(store)):
        assert "s3cret" not in shown
