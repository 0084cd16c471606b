"""A home of Spark for the tests, whose Java starts in half the time.

``python -m tests.pipeline.spark_home`` makes an archive of the classes that Spark loads (JEP 350). The tests start
Java about twenty times; without the archive, each of them reads and checks 20,000 classes of 300 jars.
"""

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

HOME = Path(sys.prefix) / "spark-home"
ARCHIVE = HOME / "classes.jsa"
MADE_WITHIN = 300
PROGRAM = """
import sys
from durabus.pipeline.session import QUICK, spark_session
name = "spark.driver.extraJavaOptions"
spark = spark_session(master="local[2]", conf={**QUICK, name: f"{QUICK[name]} -XX:ArchiveClassesAtExit={sys.argv[1]}"})
for mode in ("overwrite", "append"):
    rows = spark.range(9).selectExpr("id", "id % 2 AS odd").groupBy("odd").count()
    rows.write.format("delta").mode(mode).save(sys.argv[2])
spark.sql(f"MERGE INTO delta.`{sys.argv[2]}` t USING (SELECT 1 AS odd) s ON t.odd = s.odd WHEN MATCHED THEN DELETE")
spark.read.format("delta").load(sys.argv[2]).toArrow()
spark.stop()
"""


def use_spark_home() -> None:
    """Let all processes that this one starts use the home, and the archive if it was made. Nothing without PySpark.

    Without a zip in its home, Spark's workers import the installed PySpark. Python keeps no bytecode for a zip, so
    each process would compile it again.
    """
    pyspark = find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        return
    HOME.mkdir(exist_ok=True)
    for name in ("bin", "jars"):
        if not (HOME / name).is_symlink():
            made = HOME / f"{name}.{os.getpid()}"
            made.symlink_to(Path(pyspark.origin).with_name(name))
            made.replace(HOME / name)  # in one step: other processes of the tests do the same
    os.environ["SPARK_HOME"] = str(HOME)
    if ARCHIVE.exists():
        os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:SharedArchiveFile={ARCHIVE} -Xlog:disable -Xlog:all=error:stderr"


def make_archive() -> None:
    """Make the archive, unless it is there."""
    if ARCHIVE.exists():
        return
    use_spark_home()
    with tempfile.TemporaryDirectory(dir=HOME) as folder:
        made = Path(folder) / ARCHIVE.name
        # Java writes the archive when it exits. It has these pipes, too, so this waits for it.
        command = [sys.executable, "-c", PROGRAM, str(made), f"{folder}/table"]
        subprocess.run(command, check=True, capture_output=True, timeout=MADE_WITHIN, stdin=subprocess.DEVNULL)
        made.replace(ARCHIVE)


if __name__ == "__main__":
    make_archive()
