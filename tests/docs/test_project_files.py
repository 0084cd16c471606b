"""The files that a code host reads are well formed, and run what a developer runs."""

import re
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
HOOKS = ROOT / ".pre-commit-config.yaml"
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
COMMUNITY = ["CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "LICENSE", "SECURITY.md", ".github/pull_request_template.md"]


def parsed(path: Path) -> Any:
    # Imported by name: it has no types for mypy, and the lock brings it with the web framework.
    return import_module("yaml").safe_load(path.read_text(encoding="utf-8"))


def make_check() -> list[str]:
    """The commands of `make check`."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (parts,) = re.findall(r"^check:.*\n.*-j 2 (.*)\n", makefile, flags=re.MULTILINE)
    recipes = [re.findall(rf"^{one}:\n((?:\t.*\n)+)", makefile, flags=re.MULTILINE) for one in parts.split()]
    lines = [line for (recipe,) in recipes for line in recipe.splitlines()]
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in lines]


@pytest.mark.parametrize("name", COMMUNITY)
def test_a_visitor_finds_what_a_project_should_have(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8").strip()


def test_the_workflow_runs_the_script_of_the_repository_on_every_supported_python() -> None:
    test = parsed(WORKFLOW)["jobs"]["test"]
    assert [step["run"] for step in test["steps"] if "run" in step] == [".ci/run"]
    assert test["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13", "3.14"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert named == test["strategy"]["matrix"]["python"]


def test_the_workflow_runs_the_long_targets_every_night() -> None:
    workflow = parsed(WORKFLOW)
    # YAML 1.1 reads the key `on` as True.
    assert workflow[True]["schedule"]
    targets = {command.split()[1] for command in workflow["jobs"]["nightly"]["strategy"]["matrix"]["run"]}
    assert targets == {"long", "coverage", "chaos", "sim", "sim-mutants", "mutants", "soak", "fuzz", "chaos-pipeline"}
    known = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert targets <= set(known)


def test_every_job_has_a_time_limit_and_may_only_read() -> None:
    workflow = parsed(WORKFLOW)
    assert workflow["permissions"] == {"contents": "read"}
    assert [name for name, job in workflow["jobs"].items() if "timeout-minutes" not in job] == []


def test_the_hooks_are_the_linters_of_make_check() -> None:
    (local,) = parsed(HOOKS)["repos"]
    assert local["repo"] == "local"
    assert sorted(hook["entry"] for hook in local["hooks"]) == sorted(make_check())


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_an_issue_form_is_well_formed(form: Path) -> None:
    found = parsed(form)
    if form.stem == "config":
        assert set(found) <= {"blank_issues_enabled", "contact_links"}
        return
    assert {"name", "description", "body"} <= set(found)
    fields = [field for field in found["body"] if field["type"] != "markdown"]
    assert all({"id", "attributes"} <= set(field) and field["attributes"]["label"] for field in fields)
    assert len({field["id"] for field in fields}) == len(fields) > 0


def test_the_extra_all_brings_every_extra_but_spark() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    assert everything == f"durabus[{','.join(sorted(extras.keys() - {'all', 'spark'}))}]"
