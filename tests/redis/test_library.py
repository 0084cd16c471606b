"""The functions on the server: one library, named after its content, one file for each verb."""

import inspect
import re
from importlib.resources import files

import pytest

import durabus.stores.redis
from durabus.stores.redis import claims, core, events, log, results, store
from durabus.stores.redis.layout import KEYS, SCHEMA, key_names
from durabus.stores.redis.schema import library

FOLDER = files(durabus.stores.redis) / "functions"
VERBS = {one.name.removesuffix(".lua"): one.read_text(encoding="utf-8") for one in FOLDER.iterdir() if one.is_file()}
MODULES = (claims, core, events, log, results, store)


def test_the_name_of_the_library_holds_the_schema_and_a_digest() -> None:
    name, code = library()
    assert re.fullmatch(rf"durabus_{SCHEMA}_[0-9a-f]{{12}}", name)
    assert code.startswith(f"#!lua name={name}\n")


@pytest.mark.parametrize("verb", VERBS)
def test_a_file_begins_with_what_it_does_and_registers_its_own_name(verb: str) -> None:
    text = VERBS[verb]
    assert text.startswith("-- ")
    assert re.findall(r"register\('(\w+)'", text) == [verb]


def test_every_function_is_called_and_every_call_has_its_function() -> None:
    source = "\n".join(inspect.getsource(module) for module in MODULES)
    called = set(re.findall(r"(?:_call|_forget|_trim)\(\s*\"(\w+)\"", source))
    assert called == set(VERBS)


def test_no_function_searches_the_key_space() -> None:
    for verb, text in VERBS.items():
        assert not re.search(r"redis\.call\('(KEYS|SCAN|HSCAN|ZSCAN|SMEMBERS)'", text), verb


def test_all_keys_share_one_slot() -> None:
    names = key_names("shop")
    assert len(names) == len(set(names)) == len(KEYS)
    assert {re.findall(r"\{.*?\}", name)[0] for name in names} == {"{shop}"}
