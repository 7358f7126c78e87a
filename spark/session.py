"""A Spark session with the settings that Motelog's jobs and tests need.

Owns: start_session, the check for Java, how a script's uncaught error is displayed. Must not touch:
the source, brokers.
Workers run this process's interpreter, because others may lack our packages. A session on this
machine uses only loopback and opens no web interface.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from motelog.spark.errors import SourceError, our_sentence

JAVA_NEEDED: Final = (
    "Spark needs Java 17 or 21: install a JRE (such as openjdk-17-jre-headless) or set JAVA_HOME"
)


class NoJavaError(SourceError):
    """No Java was found to run Spark."""

    def __init__(self) -> None:
        super().__init__(JAVA_NEEDED)


class NoSessionError(SourceError):
    """Spark does not start, usually because its master is unreachable; it has printed details."""

    def __init__(self, master: str, why: str) -> None:
        first = why.strip().partition("\n")[0]
        super().__init__(f"Spark does not start with master {master!r}: {first}")


def has_java() -> bool:
    """Return whether Spark would find a Java of any version."""
    home = os.environ.get("JAVA_HOME")
    return bool(home and Path(home, "bin", "java").exists()) or shutil.which("java") is not None


def start_session(
    name: str, *, master: str = "local[*]", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the running session, or start one; ``conf`` overrides the settings made here.

    The caller stops it. NoJavaError if there is no Java, NoSessionError if it does not start. An
    uncaught error of the source is displayed as one sentence instead of Spark's tracebacks.
    """
    if not has_java():
        raise NoJavaError
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        _share_checkout()
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # Spark's default of 200 shuffle partitions is for clusters.
            "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 1)),
        }
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in (settings | dict(conf or {})).items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except PySparkRuntimeError as exc:
        raise NoSessionError(master, str(exc)) from exc
    except Py4JJavaError as exc:
        raise NoSessionError(master, exc.java_exception.getMessage() or str(exc)) from exc
    if sys.excepthook is sys.__excepthook__:  # shells and debuggers have their own
        sys.excepthook = _show
    session.sparkContext.setLogLevel("ERROR")
    return session


def _show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    sentence = our_sentence(error)
    if sentence == str(error):
        sys.__excepthook__(kind, error, traceback)
    else:
        sys.stderr.write(f"motelog: {sentence}\n")


def _share_checkout() -> None:
    """Let workers import Motelog too if this runs from a checkout that is not installed."""
    root = str(Path(__file__).resolve().parents[1])
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if root not in paths and "site-packages" not in root:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, paths)])
