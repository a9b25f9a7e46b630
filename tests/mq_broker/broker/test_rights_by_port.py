"""Every method, asked by somebody who shows a token and has the rights, and by somebody who has not: as test_rights.py
asks with names."""

from __future__ import annotations

import asyncio
from pathlib import Path

from mq_broker.coordination.file import FileStore
from mq_broker.coordination.service import CoordinationService
from mq_broker.security.tokens import DOCUMENT, Tokens, dump
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.secrets import digest_of, new_api_token
from mq_protocol.errors import PermissionDenied, UnknownTopic
from tests.mq_broker.broker.by_token import Shown, over_tls
from tests.mq_broker.broker.test_rights import NEEDING, OTHER, TOPIC, Case, cases_of, outcome, request_of, rule_of

WHO = ("-allowed-literal", "-nobody")
NOW = 1_700_000_000


def cases() -> list[Case]:
    return [case for method in NEEDING for case in cases_of(method) if case.who.endswith(WHO)]


def with_token(who: str, tokens: Tokens) -> tuple[Tokens, str]:
    number, token = new_api_token()
    user = who.removeprefix("User:")
    valid_s = 3_650 * 86_400
    return tokens.with_user(user, NOW).with_token(user, number, digest_of(token.reveal()), valid_s, NOW), token.reveal()


async def there(root: Shown) -> list[str]:
    answer = await root.ask("Metadata", pb.MetadataRequest(topics=[TOPIC, OTHER]))
    return [topic.name for topic in answer.topics]


def test_who_shows_a_token_may_do_what_rules_say_and_no_more(tmp_path: Path) -> None:
    async def main() -> None:
        tokens, texts = Tokens(), {}
        for case in cases():
            tokens, texts[case.who] = with_token(case.who, tokens)
        store = CoordinationService(FileStore(tmp_path / "data"))
        async with over_tls(tmp_path, coordination=lambda: store) as place, place.shown("admin") as root:
            rules = [rule_of(rule) for case in cases() for rule in case.rules]
            for first in range(0, len(rules), 500):
                await root.ask("AlterAcls", pb.AlterAclsRequest(add=rules[first : first + 500]))
            await store.security.write({DOCUMENT: (-1, dump(tokens))})
            await root.ask("Acls", pb.AclsRequest(principal="*"))  # reads it
            await root.metadata("__transactions")  # makes it
            wrong, made = [], {TOPIC, OTHER}
            for case in cases():
                for topic in made - set(await there(root)):
                    await root.create_topic(topic)
                async with place.shown(token=texts[case.who]) as client:
                    error = await outcome(client, case.method, request_of(case.method))
                refused = isinstance(error, PermissionDenied | UnknownTopic)
                if (type(error) if refused else None) is not case.expected:
                    wrong.append((case.method.name, case.who, case.expected, error))
            assert wrong == []

    assert {case.expected for case in cases()} == {None, PermissionDenied, UnknownTopic}
    asyncio.run(main())
