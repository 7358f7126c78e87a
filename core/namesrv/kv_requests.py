"""Requests on the name server's key-value table, and its file.

Owns: request codes 100, 101, 102 and 219, answers to changes that are not on the disk yet.
Must not touch: the entries and their limits (kv_config), routes.
"""

from __future__ import annotations

import msgspec

from motelog.core.errors import ConfigError
from motelog.core.flag import Flag
from motelog.core.namesrv.config import NamesrvConfig
from motelog.core.namesrv.kv_config import KvConfig
from motelog.core.remoting.fields import text_field
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode
from motelog.core.remoting.server import Connection, Processor, RemotingServer
from motelog.core.saved_table import SavedTable
from motelog.core.state_file import StateFile


class KvRequests:
    """The key-value table, which no peer would send again; without a file it ends with the process.

    If there is a file, ``run`` must be running for a change to be answered.
    """

    def __init__(self, config: NamesrvConfig, file: StateFile | None) -> None:
        self.table = KvConfig(
            entries_max=config.kv_entries_max,
            entry_characters_max=config.kv_entry_characters_max,
            characters_max=config.kv_characters_max,
        )
        self._saved = SavedTable(file, self.table) if file is not None else None
        # Answers to changes of the table that are not on the disk yet.
        self._waiting: list[tuple[RemotingCommand, Connection]] = []
        self._changed = Flag()

    def processors(self) -> dict[int, Processor]:
        return {
            RequestCode.PUT_KV_CONFIG: self._put,
            RequestCode.GET_KV_CONFIG: self._get,
            RequestCode.DELETE_KV_CONFIG: self._delete,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._list,
        }

    def _put(self, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        ext = request.ext
        self.table.put(
            text_field(ext, "namespace"), text_field(ext, "key"), text_field(ext, "value")
        )
        return self._answer_saved(request, connection)

    def _get(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        value = self.table.get(text_field(request.ext, "namespace"), text_field(request.ext, "key"))
        if value is None:
            return request.answer(ResponseCode.QUERY_NOT_FOUND, "no such key-value entry")
        return request.answer(ext={"value": value})

    def _delete(self, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        self.table.delete(text_field(request.ext, "namespace"), text_field(request.ext, "key"))
        return self._answer_saved(request, connection)

    def _list(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        table = self.table.namespace(text_field(request.ext, "namespace"))
        if table is None:
            return request.answer(ResponseCode.QUERY_NOT_FOUND, "no such key-value namespace")
        return request.answer(body=msgspec.json.encode({"table": table}))

    def _answer_saved(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand | None:
        """Answer a change of the key-value table, once it is on the disk if there is a file."""
        if self._saved is None:
            return request.answer()
        self._waiting.append((request, connection))
        self._changed.set()
        return None

    def load(self) -> None:
        """Read the table's file, if there is one; blocks."""
        if self._saved is None:
            return
        try:
            self._saved.load(is_expected=False)
        except OSError as exc:
            text = f"the key-value table cannot be read from {exc.filename}: {exc.strerror}"
            raise ConfigError(text) from exc

    async def run(self, server: RemotingServer) -> None:
        """Write the table after each change, answer the requests that made it, until cancelled."""
        while self._saved is not None:
            await self._changed.take()
            # All changes that came during the last write share this one.
            waiting, self._waiting = self._waiting, []
            fault = await self._saved.save_if_changed()
            code = ResponseCode.SUCCESS if fault is None else ResponseCode.SYSTEM_ERROR
            for request, connection in waiting:
                if not request.is_oneway:
                    connection.reply(request.answer(code, fault))
            server.flush()
