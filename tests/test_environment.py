"""The set-up files agree with each other, and the repository holds nothing that ties it to one machine.

There is no conda where these tests run, so environment.yml is checked as text only: that it names what
pyproject.toml asks for, with the same bounds. Whether conda solves it, only conda can say.
"""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))

# Where conda-forge uses another name than pip.
CONDA_NAMES = {"torch": "pytorch-cpu", "matplotlib": "matplotlib-base", "playwright": "playwright-python"}
# What conda needs and pip has anyway.
CONDA_ONLY = {"python", "pip"}


def by_name(lines: list[str]) -> dict[str, Requirement]:
    """Requirements keyed by their canonical name; two bounds for one name must agree."""
    found: dict[str, Requirement] = {}
    for requirement in map(Requirement, lines):
        name = canonicalize_name(requirement.name)
        assert found.setdefault(name, requirement) == requirement, f"{name} has two different bounds"
    return found


def wanted() -> dict[str, Requirement]:
    """Everything pyproject.toml asks for, extras included."""
    return by_name(PROJECT["dependencies"] + EXTRAS["train"] + EXTRAS["test"])


def pins() -> dict[str, Requirement]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return by_name([line for line in lines if line and not line.startswith("#")])


def repository_files() -> list[Path]:
    """The files that git keeps, or will keep once they are added."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout, so nothing says which files belong to the project")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for name in done.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def test_every_requirement_has_a_lower_bound() -> None:
    unbounded = [str(r) for r in wanted().values() if not any(s.operator == ">=" for s in r.specifier)]
    assert unbounded == []


def test_constraints_pin_every_requirement_within_its_bound() -> None:
    pinned = pins()
    for name, requirement in wanted().items():
        assert name in pinned, f"constraints.txt does not pin {name}"
        (pin,) = pinned[name].specifier
        assert pin.operator == "==", f"constraints.txt does not pin {name} to one release"
        assert requirement.specifier.contains(pin.version), f"{name} {pin.version} is outside {requirement}"


def test_constraints_name_releases_and_no_builds() -> None:
    """`2.13.0+cpu` exists on one index only; `2.13.0` means the same release on every machine."""
    assert [str(pin) for pin in pins().values() if "+" in str(pin.specifier)] == []


def test_conda_takes_everything_from_conda_forge() -> None:
    assert CONDA["channels"] == ["conda-forge", "nodefaults"]


def test_conda_leaves_pip_nothing_to_fetch() -> None:
    (pip_section,) = [line for line in CONDA["dependencies"] if isinstance(line, dict)]
    assert pip_section == {"pip": ["-e ."]}


def test_conda_names_every_requirement_with_the_same_bound() -> None:
    conda = by_name([line for line in CONDA["dependencies"] if isinstance(line, str)])
    expected = {
        canonicalize_name(CONDA_NAMES.get(name, name)): r.specifier
        for name, r in wanted().items()
        if r.marker is None  # what only some systems have is left to the pip road
    }
    assert {name: r.specifier for name, r in conda.items() if name not in CONDA_ONLY} == expected
    assert str(conda["python"].specifier) == PROJECT["requires-python"]


def imported_by(path: Path) -> set[str]:
    """Top-level names that a Python file imports, wherever in the file it does so."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.partition(".")[0])
    return names


# What minikv uses where it is: triton comes with torch's CUDA builds, vllm is a rival to measure against.
OPTIONAL = {"triton", "vllm"}


@pytest.mark.parametrize("folder", ["minikv", "tests"])
def test_every_import_is_declared(folder: str) -> None:
    """A package that is imported is asked for by name, not only because something else happens to need it."""
    declared = (
        set(by_name(PROJECT["dependencies"] + EXTRAS["train"])) if folder == "minikv" else set(wanted())
    )
    owners = packages_distributions()
    missing = set()
    for path in (ROOT / folder).rglob("*.py"):
        for name in imported_by(path) - sys.stdlib_module_names - OPTIONAL - {"minikv", "tests"}:
            if not {canonicalize_name(owner) for owner in owners.get(name, [])} & declared:
                missing.add(f"{path.relative_to(ROOT)} imports {name}")
    assert sorted(missing) == []


def test_wheel_holds_every_file_of_the_package(tmp_path: Path) -> None:
    """The block map's script, the checkpoint and the exercises travel with the package."""
    build = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
    source = tmp_path / "source"
    for path in repository_files():
        copy = source / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=source, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    package = {
        p.relative_to(ROOT).as_posix() for p in repository_files() if p.is_relative_to(ROOT / "minikv")
    }
    assert sorted(package - inside) == []


def test_lab_settings_are_known_to_jupyterlab() -> None:
    """JupyterLab drops settings that its schemas do not know without a word."""
    from jupyterlab_server.settings_utils import get_settings

    lab = Path(sys.prefix) / "share" / "jupyter" / "lab"
    folders = {"app_settings_dir": str(lab / "settings"), "schemas_dir": str(lab / "schemas")}
    kernels, _ = get_settings(
        **folders, settings_dir="", schema_name="@jupyterlab/apputils-extension:kernels-settings"
    )
    news, _ = get_settings(
        **folders, settings_dir="", schema_name="@jupyterlab/apputils-extension:notification"
    )
    assert kernels["schema"]["properties"]["commsOverSubshells"]["default"] == "disabled"
    assert news["schema"]["properties"]["fetchNews"]["default"] == "false"
    assert news["schema"]["properties"]["checkForUpdates"]["default"] is False


# The needles are put together here, so that this file does not hold them.
MACHINE_FOLDERS = "|".join(["home", "root", "tmp", "work", "Users"])
MACHINE_PATH = re.compile(rf"(?<![\w.:/<-])/(?:{MACHINE_FOLDERS})/\w|\b[A-Z]:\\+Users")
REGISTRY_HOSTS = re.compile(
    "|".join(
        re.escape(".".join(parts))
        for parts in [
            ("pypi", "org"),
            ("python" + "hosted", "org"),
            ("registry", "npmjs", "org"),
            ("download", "py" + "torch", "org"),
            ("repo", "ana" + "conda", "com"),
            ("conda", "ana" + "conda", "org"),
            ("deb", "debian", "org"),
        ]
    )
)


@pytest.mark.parametrize("needle", [MACHINE_PATH, REGISTRY_HOSTS], ids=["machine paths", "registry hosts"])
def test_repository_holds_no(needle: re.Pattern[str]) -> None:
    found = []
    for path in repository_files():
        if path.suffix in {".safetensors", ".png"}:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            found += [f"{path.relative_to(ROOT)}:{number}: {hit.group()}" for hit in needle.finditer(line)]
    assert found == []
