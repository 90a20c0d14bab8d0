"""Apache Kafka out of jars that Maven resolves: fetched and formatted once, then kept in the user's cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from services import Unavailable

POM = Path(__file__).parent.parent / "kafka" / "pom.xml"
NODES = 3
_CLUSTER_ID = "FencepostTestsClustrId"  # any 22 characters of base64url

# Short-lived JVMs on few cores: the plain collector and the quick compiler start fastest.
JAVA = (
    "java",
    "-Xmx384m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Xlog:cds=off,cds+dynamic=off",
)


@dataclass(frozen=True, slots=True)
class Distribution:
    """A Kafka that is ready to start: its jars, one formatted data folder for each node, and a class archive."""

    home: Path

    @property
    def classpath(self) -> str:
        return os.pathsep.join(str(jar) for jar in sorted((self.home / "jars").glob("*.jar")))

    @property
    def archive(self) -> Path:
        """Parsed classes of a broker (CDS), which halve its start; it may be absent."""
        return self.home / "classes.jsa"

    def formatted(self, node: int) -> Path:
        return self.home / "formatted" / str(node)

    def java(self, main: str, *arguments: str | Path, options: tuple[str, ...] = ()) -> list[str]:
        """The command line of one of Kafka's programs."""
        shared = (f"-XX:SharedArchiveFile={self.archive}",) if self.archive.exists() else ()
        return [*JAVA, *shared, *options, "-cp", self.classpath, main, *map(str, arguments)]


def version() -> str:
    """The version that the pom names."""
    found = ET.parse(POM).find(".//{*}kafka.version")
    if found is None or found.text is None:
        raise Unavailable(f"{POM.name} names no Kafka version")
    return found.text


def obtainable() -> bool:
    return shutil.which("java") is not None and shutil.which("mvn") is not None


def prepare(train: Callable[[Distribution], None]) -> Distribution:
    """The distribution, made when the cache has none. ``train`` runs a broker that writes the class archive.

    The first time takes as long as Maven's download and about 15 seconds; later ones a fraction of a second.
    """
    home = _home()
    distribution = Distribution(home)
    try:
        with _alone(home.with_name(f"{home.name}.lock")):
            _once(home / "jars", _fetch)
            _once(home / "formatted", lambda into: _format(distribution, into))
            if not (home / "trained").exists():
                distribution.archive.unlink(missing_ok=True)
                train(distribution)
                (home / "trained").touch()
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(f"no Kafka out of Maven's jars: {error}") from error
    return distribution


def _home() -> Path:
    """A folder that belongs to this pom and this Java: an archive of classes fits no other."""
    java = subprocess.run(["java", "-version"], check=True, capture_output=True).stderr
    key = hashlib.sha256(POM.read_bytes() + java + repr(JAVA).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "fencepost" / f"kafka-{version()}-{key}"


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _once(folder: Path, make: Callable[[Path], None]) -> None:
    """Makes a folder whole or not at all."""
    if not folder.exists():
        unfinished = folder.with_suffix(".new")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        make(unfinished)
        unfinished.rename(folder)


def _fetch(into: Path) -> None:
    command = ["mvn", "--batch-mode", "--quiet", "--file", str(POM), "dependency:copy-dependencies"]
    command += [f"-DoutputDirectory={into}", "-DincludeScope=runtime"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        errors = [line for line in done.stdout.splitlines() if "ERROR" in line] or [f"mvn ended with {done.returncode}"]
        raise Unavailable(f"Maven could not resolve Kafka's jars: {errors[0]}")


def _format(distribution: Distribution, into: Path) -> None:
    """``kafka-storage format`` for every node. What it writes names no port and no path, so each run takes a copy."""
    running = []
    for node in range(1, NODES + 1):
        settings = into / f"{node}.properties"
        voters = ",".join(f"{voter}@127.0.0.1:{voter}" for voter in range(1, NODES + 1))
        settings.write_text(
            f"process.roles=broker,controller\nnode.id={node}\ncontroller.quorum.voters={voters}\n"
            f"listeners=CONTROLLER://127.0.0.1:{node},PLAINTEXT://127.0.0.1:9{node}\n"
            f"controller.listener.names=CONTROLLER\nlog.dirs={into / str(node)}\n"
        )
        command = distribution.java("kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", settings)
        running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    if any([process.wait(120) != 0 for process in running]):  # noqa: C419 (all of them have to be waited for)
        raise Unavailable("kafka-storage format failed")
