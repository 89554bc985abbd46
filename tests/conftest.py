"""What holds for all tests: none fails because the machine is slow, and none makes it slower than need be."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# Virtual machines of tests live for seconds. The compiler for code that runs for long takes two fifths of their time.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
for _name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
    os.environ.setdefault(_name, SHORT_LIVED)
