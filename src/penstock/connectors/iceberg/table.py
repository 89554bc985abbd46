"""Opening an Iceberg table: its catalog, its place, its schema, and errors that name the table and a way out."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from penstock.connectors.files.filesystem import LocalPlace, Place, RemotePlace, address_of
from penstock.connectors.tables.arguments import required
from penstock.errors import PipelineError, StorageError


class IcebergLocation:
    """A table of a catalog, and how to get there. Pickled to the workers; opens nothing by itself."""

    def __init__(self, catalog: str | Mapping[str, str], table: str, user: str) -> None:
        required("pyiceberg.catalog", "iceberg", user)
        if "." not in table:
            raise PipelineError(f"{user}: table is {table!r}: write it with its namespace, as 'shop.orders'")
        self.catalog = catalog if isinstance(catalog, str) else dict(catalog)
        self.name = table
        self.user = user

    def package(self, module: str) -> Any:
        """A module of pyiceberg."""
        return required(f"pyiceberg.{module}", "iceberg", self.user)

    def identity(self) -> Mapping[str, str]:
        """The table and its catalog without secrets."""
        catalog = self.catalog if isinstance(self.catalog, str) else address_of(self.catalog.get("uri", "default"))
        return {"catalog": catalog, "table": self.name}

    def open_catalog(self) -> Any:
        load_catalog = self.package("catalog").load_catalog
        if isinstance(self.catalog, str):
            return load_catalog(self.catalog)
        properties = dict(self.catalog)
        # Some catalogs, such as that of SQL, keep tables by the name of the catalog too.
        return load_catalog(properties.pop("name", "default"), **properties)

    def table(self, cure: str) -> Any:
        """The table as it is now. Raises `PipelineError` if it does not exist, `StorageError` if the catalog fails."""
        try:
            return self.open_catalog().load_table(self.name)
        except self.package("exceptions").NoSuchTableError as error:
            raise PipelineError(f"{self.user}: the catalog has no table {self.name}: {cure}") from error
        except Exception as error:
            raise self.failure("cannot be loaded", error) from error

    def failure(self, what: str, error: Exception) -> StorageError:
        text = str(error).strip().partition("\n")[0]
        return StorageError(
            f"{self.user}: the table {self.name} {what}: {type(error).__name__}: {text}. Check the properties of the "
            f"catalog, its credentials and those of the warehouse"
        )

    def place(self, table: Any) -> Place:
        """The directory of the table, with the file system and the credentials that the catalog gives for it."""
        location = table.location().rstrip("/")
        parts = urllib.parse.urlsplit(location)
        if parts.scheme in ("", "file"):
            return LocalPlace(urllib.parse.unquote(parts.path))
        files = self.package("io.pyarrow").PyArrowFileIO(table.io.properties)
        return RemotePlace(files.fs_by_scheme(parts.scheme, parts.netloc), f"{parts.netloc}{parts.path}", location)

    def arrow_schema(self, schema: Any) -> pa.Schema:
        """A schema of Iceberg in types of pyarrow. Without field ids: files that the table has not written itself must
        come without them, and are mapped by name."""
        made: pa.Schema = self.package("io.pyarrow").schema_to_pyarrow(schema, include_field_ids=False)
        return made.remove_metadata()
