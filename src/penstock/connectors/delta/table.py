"""Opening a Delta table: its place, its handle, its schema, and errors that name the table and a way out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.fs

from penstock.connectors.files.filesystem import LocalPlace, Place, RemotePlace, address_of
from penstock.connectors.files.listing import absolute
from penstock.connectors.tables.arguments import required
from penstock.errors import PipelineError, StorageError


class DeltaLocation:
    """Where a Delta table lies, and how to get there. Pickled to the workers; opens nothing by itself."""

    def __init__(self, path: str | os.PathLike[str], storage_options: Mapping[str, str] | None, user: str) -> None:
        self.deltalake = required("deltalake", "delta", user)
        self.path = absolute(path).rstrip("/")
        self.options = dict(storage_options or {})
        self.user = user
        if not all(isinstance(text, str) for pair in self.options.items() for text in pair):
            raise PipelineError(f"{user}: storage_options must map strings to strings, as deltalake expects")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "deltalake"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.deltalake = required("deltalake", "delta", self.user)

    @property
    def address(self) -> str:
        """The path without secrets."""
        return address_of(self.path)

    def place(self) -> Place:
        """The directory of the table, for its data files."""
        if "://" not in self.path or self.path.startswith("file://"):
            return LocalPlace(self.path.removeprefix("file://"))
        handler = required("deltalake.fs", "delta", self.user).DeltaStorageHandler(self.path, self.options)
        return RemotePlace(pa.fs.PyFileSystem(handler), "", self.address)

    def table(self, version: int | None = None) -> Any:
        """The table, or None if it does not exist. Raises `StorageError`."""
        try:
            return self.deltalake.DeltaTable(self.path, version=version, storage_options=self.options or None)
        except self.deltalake.exceptions.TableNotFoundError:
            return None
        except (self.deltalake.exceptions.DeltaError, OSError, ValueError) as error:
            raise self.failure("cannot be opened", error) from error

    def failure(self, what: str, error: Exception) -> StorageError:
        text = str(error).partition("\n")[0]
        return StorageError(
            f"{self.user}: the Delta table {self.address} {what}: {text}. Check the path, the permissions and "
            f"storage_options"
        )


def arrow_schema(table: Any) -> pa.Schema:
    """The schema of a Delta table in types of pyarrow."""
    return pa.schema(table.schema().to_arrow())
