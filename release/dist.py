"""Builds the wheel and the source distribution into dist/, and tries both in fresh environments: python -m release.dist

Built from a copy of the files that git knows, so that nothing that merely lies about gets in. The wheel is built from
the source distribution, which shows that this is whole.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from pathlib import Path
from typing import Any, Final

from release.description import description, urls
from release.environments import ROOT, Environment, Failed, run

IN_THE_SOURCES: Final = (
    *("COMPATIBILITY.md", "CONTRIBUTING.md", "SECURITY.md", "mkdocs.yml", "release/site/hooks.py"),
    *("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "LICENSE", "Makefile", "pyproject.toml", "requirements.lock"),
    *("docs/kafka-options.md", "notebooks/README.md", "benchmarks/RESULTS.md", "release/dist.py"),
    *("src/mq_broker/core/DESIGN.md", "src/mq_protocol/mq.proto"),
    *("tests/conftest.py", "tests/spark/CRASHES.md", "tests/mq_broker/core/scripts"),
)
PACKAGES: Final = (
    "mq_protocol",
    "mq_process",
    "mq_broker",
    "mq_client",
    "mq_spark",
    "mq_dev",
    "mq_cli",
    "mq_console",
    "mq_pytest",
    "pyspark_tritonmq",
    "tritonmq",
)
IN_THE_WHEEL: Final = (
    *(f"{package}/py.typed" for package in PACKAGES),
    "mq_protocol/mq.proto",
    "mq_protocol/mq_pb2.pyi",
    "mq_console/templates/base.html",
    "mq_console/static/console.css",
    "mq_console/static/vendor/VERSIONS",
)
READY_SECONDS: Final = 30


def main() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    home = project["tool"]["tritonmq"]["home"]
    with tempfile.TemporaryDirectory(prefix="tritonmq-dist-") as name:
        scratch = Path(name)
        tree = copied(scratch / "tree")
        describe(tree, home)
        built = build(tree, scratch)
        for each in built:
            check_contents(each, project["project"])
            try_out(each, scratch / "environment", project["project"]["version"])
            print(
                f"{each.name}: contents as they should be; installed, imported, a broker produced to and consumed from"
            )
        (ROOT / "dist").mkdir(exist_ok=True)
        for each in built:
            shutil.copy2(each, ROOT / "dist")
    if not home:
        print(
            "pyproject.toml names no home ([tool.tritonmq] home): the metadata have no URLs, and links in the "
            "description are text"
        )
    return 0


def copied(tree: Path) -> Path:
    """The files that git knows, or in an unpacked source distribution all there are."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".*", "dist", "build", "*.egg-info", "__pycache__"))
        return tree
    for name in listed.stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    return tree


def describe(tree: Path, home: str) -> None:
    """Put absolute links into the copy's README, and the project's addresses into its pyproject.toml."""
    readme = tree / "README.md"
    readme.write_text(description(readme.read_text(), home))
    found = urls(home)
    if found:
        lines = "".join(f'{name} = "{address}"\n' for name, address in found.items())
        with (tree / "pyproject.toml").open("a") as project:
            project.write(f"\n[project.urls]\n{lines}")


def build(tree: Path, scratch: Path) -> list[Path]:
    tools = Environment(scratch / "tools", Path(sys.executable))
    tools.install("build", "twine")
    run([tools.python, "-m", "build", "--outdir", scratch / "built", tree], timeout_s=600, cwd=scratch)
    built = sorted((scratch / "built").iterdir())
    if [each.suffix for each in built] != [".whl", ".gz"]:
        raise Failed(f"a wheel and a source distribution were expected, and built were: {built}")
    print(run([tools.python, "-m", "twine", "check", "--strict", *built], timeout_s=60).strip())
    return built


def check_contents(built: Path, project: dict[str, Any]) -> None:
    """Raises `Failed` for what is missing or should not be there."""
    if built.suffix == ".whl":
        with zipfile.ZipFile(built) as wheel:
            names = wheel.namelist()
            (metadata_name,) = (name for name in names if name.endswith(".dist-info/METADATA"))
            metadata = wheel.read(metadata_name).decode()
        top = {name.split("/")[0] for name in names if ".dist-info/" not in name}
        if top != set(PACKAGES):
            raise Failed(f"{built.name} has the packages {sorted(top)}, not {sorted(PACKAGES)}")
        expected: tuple[str, ...] = IN_THE_WHEEL
        for line in (
            f"Version: {project['version']}",
            "License-Expression: Apache-2.0",
            "Classifier: ",
            "Keywords: ",
            "Author",
        ):
            if f"\n{line}" not in metadata:
                raise Failed(f"{built.name}: its metadata lack {line!r}")
    else:
        with tarfile.open(built) as sources:
            names = [name.partition("/")[2] for name in sources.getnames()]
        expected = IN_THE_SOURCES
    missing = [name for name in expected if name not in names]
    stray = [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".orig"))]
    if missing or stray:
        raise Failed(f"{built.name} lacks {missing} and should not have {stray}")


def try_out(
    built: Path, folder: Path, version: str, interpreter: Path = Path(sys.executable), beside: tuple[str, ...] = ()
) -> None:
    """Install it, beside those requirements, and send a message through a broker of its own. Raises `Failed`."""
    environment = Environment(folder, interpreter)
    environment.install(built, *beside)
    tritonmq, variables = environment.command("tritonmq"), environment.variables()
    said = run([tritonmq, "--version"], timeout_s=60, env=variables, cwd=folder)
    if version not in said:
        raise Failed(f"tritonmq --version says {said!r}, not {version}")
    run([environment.python, "-m", "pip", "check"], timeout_s=60, env=variables, cwd=folder)
    code = (
        "import tritonmq; tritonmq.Admin, tritonmq.Producer, tritonmq.Consumer, tritonmq.Reader; "
        "print(tritonmq.__version__)"
    )
    if run([environment.python, "-c", code], timeout_s=60, env=variables, cwd=folder).strip() != version:
        raise Failed(f"tritonmq.__version__ is not {version}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    broker: list[str | Path] = [
        tritonmq,
        "broker",
        "--id",
        "1",
        "--listen",
        address,
        "--data",
        folder / "data",
        "--standalone",
    ]
    variables["TRITONMQ_BOOTSTRAP"] = address
    with (folder / "broker.log").open("w") as log:
        process = subprocess.Popen(broker, env=variables, cwd=folder, stdout=log, stderr=log)
    try:
        _wait_until_ready(tritonmq, variables, folder)
        run([tritonmq, "topic", "create", "greetings"], timeout_s=60, env=variables, cwd=folder)
        produce: list[str | Path] = [tritonmq, "produce", "greetings"]
        subprocess.run(produce, input="hello\n", text=True, env=variables, cwd=folder, timeout=60, check=True)
        consume: list[str | Path] = [tritonmq, "consume", "greetings", "--from", "earliest", "--max", "1"]
        consumed = run(consume, timeout_s=60, env=variables, cwd=folder)
        if "hello" not in consumed:
            raise Failed(f"consumed was {consumed!r}, not the hello that was produced")
    finally:
        process.terminate()
        process.wait(30)


def _wait_until_ready(tritonmq: Path, variables: dict[str, str], folder: Path) -> None:
    limit = time.monotonic() + READY_SECONDS
    while True:
        try:
            run([tritonmq, "cluster", "status"], timeout_s=READY_SECONDS, env=variables, cwd=folder)
        except Failed as error:
            if time.monotonic() > limit:
                raise Failed(f"the broker was not ready: {error}\n{(folder / 'broker.log').read_text()}") from error
        else:
            return


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as error:
        sys.exit(f"make dist: {error}")
