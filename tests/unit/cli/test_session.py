"""The session of `penstock run`: a master that cannot be reached is an error before Spark is started."""

from __future__ import annotations

import socket

import pytest

from penstock.cli.session import check_master, make_session, properties_for
from penstock.errors import PenstockError


def unused_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_a_master_that_nobody_listens_at_is_named_at_once_and_spark_is_not_started() -> None:
    master = f"spark://127.0.0.1:{unused_port()}"
    properties = properties_for("p", master, (), {}, verbose=False)
    with pytest.raises(PenstockError, match=f"the Spark master {master} cannot be reached .*refused.*--master"):
        make_session(properties, (), None, verbose=False)


def test_a_master_without_a_port_is_an_error_too() -> None:
    with pytest.raises(PenstockError, match="cannot be reached"):
        check_master("spark://nowhere")


def test_of_several_masters_one_must_be_there() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        check_master(f"spark://127.0.0.1:{unused_port()},127.0.0.1:{listener.getsockname()[1]}")


@pytest.mark.parametrize("master", ["local[*]", "yarn", "k8s://https://host:443"])
def test_other_masters_are_spark_s_business(master: str) -> None:
    check_master(master)
