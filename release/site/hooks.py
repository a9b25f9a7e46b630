"""What MkDocs calls while it builds the site: pages that are made of other files, and links that lead out of `docs`."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from release.site import reference
from release.site.pages import as_page, chosen

ROOT: Final = Path(__file__).parents[2]
HOME: Final[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["tritonmq"]["home"]


def _readme(title: str, *names: str) -> Callable[[], str]:
    return lambda: chosen((ROOT / "README.md").read_text(), title, *names)


FROM_FILES: Final[Mapping[str, str]] = {
    "architecture.md": "ARCHITECTURE.md",
    "changelog.md": "CHANGELOG.md",
    "compatibility.md": "COMPATIBILITY.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "benchmarks/results.md": "benchmarks/RESULTS.md",
    "benchmarks/kafka.md": "benchmarks/KAFKA.md",
    "design/core.md": "src/mq_broker/core/DESIGN.md",
    "design/storage.md": "src/mq_broker/storage/DESIGN.md",
    "design/host.md": "src/mq_broker/broker/host/DESIGN.md",
    "design/exactly-once.md": "src/mq_broker/broker/transactions/DESIGN.md",
    "design/queues.md": "src/mq_broker/broker/queues/DESIGN.md",
    "design/traps-of-queues.md": "src/mq_broker/broker/queues/TRAPS.md",
    "design/groups.md": "src/mq_broker/broker/groups/DESIGN.md",
    "design/wire.md": "src/mq_broker/rpc/DESIGN.md",
    "design/coordination.md": "src/mq_broker/coordination/DESIGN.md",
    "design/security.md": "src/mq_broker/security/DESIGN.md",
    "design/client.md": "src/mq_client/DESIGN.md",
    "design/spark.md": "src/mq_spark/DESIGN.md",
}
"""Pages of the site that are other files of the repository."""

MADE: Final[Mapping[str, Callable[[], str]]] = {
    "index.md": _readme("TritonMQ", "", "What is promised", "How fast", "Where to go on"),
    "quickstart.md": _readme("Quick start", "Quick start"),
    "reference/topic-settings.md": reference.topic_settings,
    "reference/broker-options.md": reference.broker_options,
    "reference/spark-options.md": reference.spark_options,
    "reference/commands.md": reference.commands,
    "reference/rights.md": reference.rights,
    "reference/errors.md": reference.errors,
    "api/client.md": reference.client,
    "api/spark.md": reference.spark,
}
"""Pages that are made: of sections of the README, or of the code."""


SAID_BY_CODE: Final = {
    "src/mq_protocol/errors.py": "reference/errors.md",
    "src/mq_cli/main.py": "reference/commands.md",
    "src/mq_protocol/access/rights.py": "reference/rights.md",
}
"""Files of code that a link in the repository leads to, and the page that says the same on the site."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, origin in FROM_FILES.items():
        files.append(File.generated(config, source, content=(ROOT / origin).read_text()))
    for source, make in MADE.items():
        files.append(File.generated(config, source, content=make()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    source = page.file.src_uri
    pages = {f"docs/{file.src_uri}": file.src_uri for file in files if file.src_uri not in FROM_FILES}
    pages |= {origin: made for made, origin in FROM_FILES.items()} | {"README.md": "index.md"} | SAID_BY_CODE
    made_of_readme = source in MADE and not source.startswith(("reference/", "api/"))
    origin = FROM_FILES.get(source) or ("README.md" if made_of_readme else f"docs/{source}")
    return as_page(markdown, origin, source, pages, HOME)


def on_config(config: MkDocsConfig, **_: Any) -> MkDocsConfig:
    """Nothing of the site is fetched from elsewhere, so that it is read without a network too."""
    if config.theme.get("font") is not False:
        raise ValueError("mkdocs.yml: theme.font must be false, or pages fetch fonts from another host")
    return config
