"""What a URL may contain, and the errors for the rest, before anything is sent."""

import pytest

from durabus.errors import ConfigurationError
from durabus.store.connect import make_store
from durabus.stores.redis.connection import parse_url


def test_an_address_has_defaults() -> None:
    address = parse_url("redis://example.org")
    assert (address.prefix, address.timeout) == ("durabus", 10.0)
    assert address.options == {"host": "example.org"}


def test_a_url_can_set_every_option() -> None:
    address = parse_url("rediss://bob:s%40crt@example.org:7000/3?prefix=shop.eu&timeout=2.5&ssl_ca_certs=/ca.pem")
    assert (address.prefix, address.timeout) == ("shop.eu", 2.5)
    options = address.options
    assert (options["host"], options["port"], options["db"]) == ("example.org", 7000, 3)
    assert (options["username"], options["password"]) == ("bob", "s@crt")
    assert options["ssl_ca_certs"] == "/ca.pem"


def test_the_password_is_not_shown() -> None:
    assert parse_url("redis://bob:secret@example.org:7000/3?timeout=1").shown == "redis://example.org:7000/3"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://h?prefix=", "prefix='' must be 1 to 64"),
        ("redis://h?prefix=a{b}", "prefix='a{b}' must be"),
        (f"redis://h?prefix={'x' * 65}", "must be 1 to 64"),
        ("redis://h?timeout=0", "timeout='0' must be seconds"),
        ("redis://h?timeout=soon", "timeout='soon' must be seconds"),
        ("redis://h?timeout=inf", "timeout='inf' must be seconds"),
        ("redis://h/shop", "the path is the number of the database"),
        ("redis://h?ssl_check_hostname=perhaps&db=x", "Invalid value"),
    ],
)
def test_what_cannot_work_is_refused_with_its_value(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match="redis://h") as caught:
        make_store(url)
    assert said in str(caught.value)
