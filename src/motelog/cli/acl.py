"""``motelog acl``: what the rules of an ACL file allow.

Owns: the text and JSON output. Must not touch: what a rule means.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from motelog.cli.admin import Json
from motelog.cli.configured_file import config_option, configured_file, file_option
from motelog.cli.options import commands, takes_options
from motelog.cli.output import CliError, stop, table, write, write_json
from motelog.cli.status import Status

if TYPE_CHECKING:
    from motelog.gateway.access.acl import Action, Rule

acl = commands("Show what the rules of an ACL file allow.")


@acl.callback()
def group() -> None:
    """Show what the rules of an ACL file allow."""


@dataclass(frozen=True, slots=True)
class AclFile:
    """The ACL file, as --file or --config names it."""

    file: Annotated[Path | None, file_option("ACL file")] = None
    config: Annotated[Path | None, config_option("ACL file", "access.acl_file")] = None

    @property
    def path(self) -> str:
        without = ": every user who has logged in may do everything"
        key = "access.acl_file"
        return configured_file(self.file, self.config, key=key, what="ACL file", without=without)


@acl.command(epilog="Example: motelog acl check dev42 'telemetry/dev42/#' --file acl.toml")
@takes_options
def check(
    user: Annotated[
        str, typer.Argument(metavar="USER", help="User name; '' for an anonymous user.")
    ],
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic name or filter.")],
    client_id: Annotated[
        str,
        typer.Option("--client-id", "-i", metavar="ID", help="Value of {client_id} in the rules."),
    ] = "",
    certificate_name: Annotated[
        str, typer.Option(metavar="NAME", help="Value of {certificate_name} in the rules.")
    ] = "",
    *,
    file: AclFile,
    json: Json = False,
) -> None:
    """Show what a user may do with a topic, and which rule decides.

    The exit status is 5 if the user may do nothing. For a topic filter only subscribing is checked.
    """
    from motelog.gateway.access.acl import read_acl
    from motelog.gateway.access.rights import NONE, Who
    from motelog.gateway.mqtt.errors import GatewayError
    from motelog.gateway.mqtt.topics import check_topic_filter, has_wildcard
    from motelog.gateway.sessions.subscribe_rules import judged

    try:
        check_topic_filter(topic)
        judged_by = judged(topic)
    except GatewayError as exc:
        raise CliError(str(exc), status=Status.USAGE) from None
    rules = read_acl(file.path)
    whose = Who(user, client_id, certificate_name=certificate_name)
    is_filter = has_wildcard(judged_by) or judged_by != topic
    actions: tuple[Action, ...] = ("publish", "retain", "subscribe")
    decided = {}
    for action in actions:
        found = rules.decide(whose, action, judged_by)
        if is_filter and action != "subscribe":
            found = NONE, None
        decided[action] = found
    # A message can be retained only if it may be published.
    if decided["publish"][0] == NONE:
        decided["retain"] = decided["publish"]
    if json:
        write_json({"user": user, "client_id": client_id, "topic": topic} | _as_json(decided))
    else:
        rows = [("", "allowed", "highest qos", "rule")]
        for name, (qos, rule) in decided.items():
            is_allowed = qos != NONE
            qos_text = str(qos) if is_allowed and name != "retain" else "-"
            rows.append((name, "yes" if is_allowed else "no", qos_text, _rule(rule)))
        write(table(rows))
    is_any = any(qos != NONE for qos, _ in decided.values())
    stop(Status.DONE if is_any else Status.REFUSED)


def _as_json(decided: dict[Any, tuple[int, Rule | None]]) -> dict[str, Any]:
    return {
        name: {
            "allowed": qos >= 0,
            "qos_max": qos if qos >= 0 else None,
            "rule": None if rule is None else rule.number,
        }
        for name, (qos, rule) in decided.items()
    }


def _rule(rule: Rule | None) -> str:
    return "no rule allows it" if rule is None else f"{rule.number}"
