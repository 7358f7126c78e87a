"""Users and rules of RocketMQ 5, as its tools create, change and list them.

Owns: request codes 3001 to 3010, the log line about each change. Must not touch: the table of users
(core.acl.users), which requests pass (core.acl.gate, which receives every change).
Spec: RocketMQ 5.3 AdminBrokerProcessor.

A name has one owner: accounts of plain_acl.yml can only be changed there. Without that file there
is no access control, so no account may create users: all of these requests are refused.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import msgspec

from motelog.core.acl.gate import AclGate
from motelog.core.acl.users import AclInfo, UserInfo, subject_user
from motelog.core.broker.processors.shared import Shared
from motelog.core.errors import BrokerError
from motelog.core.remoting.codes import RequestCode, ResponseCode
from motelog.core.remoting.credentials import ACCESS_KEY
from motelog.core.remoting.fields import text_field
from motelog.core.remoting.frames import RemotingCommand, loads_as
from motelog.core.remoting.server import Connection, Processor
from motelog.core.topic_names import shown

logger = logging.getLogger(__name__)

_NO_CONTROL: Final = (
    "this broker has no access control: set acl_file in its configuration to a file with an"
    " administrator account, which may create users"
)


class UserAdmin:
    """Changes and lists the users that tools have created."""

    def __init__(self, shared: Shared) -> None:
        self._users = shared.tables.users
        self._acl = shared.acl

    def processors(self) -> dict[int, Processor]:
        return {
            RequestCode.AUTH_CREATE_USER: self._create_user,
            RequestCode.AUTH_UPDATE_USER: self._update_user,
            RequestCode.AUTH_DELETE_USER: self._delete_user,
            RequestCode.AUTH_GET_USER: self._user,
            RequestCode.AUTH_LIST_USER: self._list_users,
            RequestCode.AUTH_CREATE_ACL: self._put_acl,
            RequestCode.AUTH_UPDATE_ACL: self._put_acl,
            RequestCode.AUTH_DELETE_ACL: self._delete_acl,
            RequestCode.AUTH_GET_ACL: self._acl_of,
            RequestCode.AUTH_LIST_ACL: self._list_acls,
        }

    def _create_user(self, request: RemotingCommand, peer: Connection) -> RemotingCommand:
        name, gate = self._changeable(text_field(request.ext, "username"))
        info = loads_as(request.body, UserInfo, "the body")
        self._users.create(name, info)
        self._done(request, peer, gate, "create_user", name, _said(info))
        return request.answer()

    def _update_user(self, request: RemotingCommand, peer: Connection) -> RemotingCommand:
        name, gate = self._changeable(text_field(request.ext, "username"))
        info = loads_as(request.body, UserInfo, "the body")
        self._users.update(name, info)
        self._done(request, peer, gate, "update_user", name, _said(info))
        return request.answer()

    def _delete_user(self, request: RemotingCommand, peer: Connection) -> RemotingCommand:
        name, gate = self._changeable(text_field(request.ext, "username"))
        # As in RocketMQ, deleting a missing user is not an error.
        if self._users.delete(name):
            self._done(request, peer, gate, "delete_user", name)
        return request.answer()

    def _user(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        self._gate()
        return _found(request, self._users.user(text_field(request.ext, "username")))

    def _list_users(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        self._gate()
        return _found(request, self._users.users(request.ext.get("filter", "")))

    def _put_acl(self, request: RemotingCommand, peer: Connection) -> RemotingCommand:
        name, gate = self._changeable(subject_user(text_field(request.ext, "subject")))
        info = loads_as(request.body, AclInfo, "the body")
        self._users.put_acl(name, info.policies)
        self._done(request, peer, gate, "put_acl", name, msgspec.to_builtins(info.policies))
        return request.answer()

    def _delete_acl(self, request: RemotingCommand, peer: Connection) -> RemotingCommand:
        ext = request.ext
        name, gate = self._changeable(subject_user(text_field(ext, "subject")))
        resource = ext.get("resource") or None
        self._users.delete_acl(name, ext.get("policyType") or None, resource)
        self._done(request, peer, gate, "delete_acl", name, resource or "all")
        return request.answer()

    def _acl_of(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        self._gate()
        return _found(request, self._users.acl(subject_user(text_field(request.ext, "subject"))))

    def _list_acls(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        self._gate()
        ext = request.ext
        found = self._users.acls(ext.get("subjectFilter", ""), ext.get("resourceFilter", ""))
        return _found(request, found)

    def _gate(self) -> AclGate:
        if self._acl is None:
            raise BrokerError(ResponseCode.NO_PERMISSION, _NO_CONTROL)
        return self._acl

    def _changeable(self, name: str) -> tuple[str, AclGate]:
        """Return a name that the file does not own, and the gate; or refuse the request."""
        gate = self._gate()
        if gate.is_in_file(name):
            text = f"{shown(name)[1:-1]} is an account in the broker's acl_file: change it there"
            raise BrokerError(ResponseCode.NO_PERMISSION, text)
        return name, gate

    def _done(
        self,
        request: RemotingCommand,
        peer: Connection,
        gate: AclGate,
        action: str,
        name: str,
        what: Any = "",
    ) -> None:
        """Put a change into force, and log who made it."""
        gate.put_users(self._users.principals())
        logger.info(
            "an administrator has changed users or rules who=%s peer=%s:%d action=%s user=%s"
            " what=%s",
            shown(request.ext.get(ACCESS_KEY, "-")),
            *peer.peer,
            action,
            shown(name),
            ascii(what)[:1000],
        )


def _said(info: UserInfo) -> dict[str, str | None]:
    """Return the part of a user's change that may be logged."""
    is_new = "changed" if info.password else None
    return {"type": info.user_type, "status": info.user_status, "password": is_new}


def _found(request: RemotingCommand, value: Any) -> RemotingCommand:
    """Answer with the found value; to RocketMQ's tools no body means not found."""
    return request.answer(body=msgspec.json.encode(value) if value else b"")
