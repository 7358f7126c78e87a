"""How much the unit tests notice: small faults in the product, each tried on its room's tests.

Owns: which faults there are, which are drawn, how one is tried. Must not touch: the checkout; it
works on a copy.

    python -m tests.mutants --count 200 --seed 25 --output before.txt
    python -m tests.mutants --again before.txt     the same ones, wherever their functions are now

A mutant is named by its function, the text of its statement, and what is changed there, not by
file and line. Those with the lowest hashes of seed and name are drawn, so that code which stays
keeps its mutants. A line of the output is tab-separated: outcome, seconds, file, name.

    killed     a test failed, or the tests took too long
    survived   all tests passed
    gone       (--again) no function has such a statement any more
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import hashlib
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
#: The product's folders, each with the folder of tests that has to notice.
ROOMS: Final = {room: f"tests/unit/{room}" for room in ("gateway", "core/broker", "core/store")}
#: The same examples each time, so that an outcome is the mutant's.
PYTEST_OPTIONS: Final = ("-x", "-q", "-n0", "-p", "no:cacheprovider", "--hypothesis-seed=25")
NOT_COPIED: Final = (".git", ".venv", ".make", "build", "dist", ".*_cache", ".hypothesis")
FAILED: Final = 1  # the exit status of pytest
ADDRESS_SPACE_BYTES: Final = 4 << 30  # a mutant may allocate without end

SWAPPED: Final[dict[type, type]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add,
}  # fmt: skip
DELETED: Final = (ast.Expr, ast.Assign, ast.AugAssign, ast.Raise, ast.Delete)


@dataclass(frozen=True)
class Mutant:
    """One fault; ``plant`` puts it into the tree that it was found in."""

    path: str  # of the file, from the root
    name: str
    plant: Callable[[], None]


def mutants_of(path: str, tree: ast.Module) -> Iterator[Mutant]:
    """Yield all faults that can be planted in the functions of a file."""
    seen: Counter[str] = Counter()
    for function, statement, block, i in _statements(tree, ()):
        text = _header(statement)
        for change, plant in _changes(statement, block, i):
            name = f"{function}: {text}: {change}"
            seen[name] += 1
            yield Mutant(path, f"{name} #{seen[name]}", plant)


def _statements(
    node: ast.AST, scope: tuple[str, ...]
) -> Iterator[tuple[str, ast.stmt, list[ast.stmt], int]]:
    """Yield function, statement, and where it stands, of each statement in a function."""
    for _, block in ast.iter_fields(node):
        if not isinstance(block, list):
            continue
        for i, child in enumerate(block):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from _statements(child, (*scope, child.name))
            elif isinstance(child, ast.stmt):
                if isinstance(node, ast.ClassDef | ast.Module) and not _is_block(child):
                    continue  # a constant or a field
                if scope:
                    yield ".".join(scope), child, block, i
                yield from _statements(child, scope)
            elif isinstance(child, ast.ExceptHandler | ast.match_case):
                yield from _statements(child, scope)


def _is_block(statement: ast.stmt) -> bool:
    return hasattr(statement, "body")


def _header(statement: ast.stmt) -> str:
    """Return the text of a statement without the statements in it."""
    if _is_block(statement):
        statement = copy.deepcopy(statement)
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            if hasattr(statement, part):
                setattr(statement, part, [])
    return " ".join(ast.unparse(statement).split())


def _changes(
    statement: ast.stmt, block: list[ast.stmt], i: int
) -> Iterator[tuple[str, Callable[[], None]]]:
    if isinstance(statement, ast.Assert | ast.Import | ast.ImportFrom):
        return
    is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    if is_text:
        return
    if isinstance(statement, DELETED):
        yield "deleted", partial(block.__setitem__, i, ast.Pass())
    if isinstance(statement, ast.If | ast.While):
        yield "negated", partial(setattr, statement, "test", ast.UnaryOp(ast.Not(), statement.test))
    for node in _expressions(statement):
        yield from _changes_of(node)


def _expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the parts of a statement's own expressions, without those that name types."""
    for name, value in ast.iter_fields(statement):
        if name == "annotation":
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.expr):
                yield from ast.walk(part)


def _changes_of(node: ast.AST) -> Iterator[tuple[str, Callable[[], None]]]:
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            if other := SWAPPED.get(type(op)):
                change = f"{type(op).__name__} to {other.__name__}"
                yield change, partial(node.ops.__setitem__, i, other())
    elif isinstance(node, ast.BoolOp | ast.BinOp):
        if other := SWAPPED.get(type(node.op)):
            change = f"{type(node.op).__name__} to {other.__name__}"
            yield change, partial(setattr, node, "op", other())
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        changed = not node.value if isinstance(node.value, bool) else node.value + 1
        yield f"{node.value} to {changed}", partial(setattr, node, "value", changed)


def all_mutants(root: Path) -> list[Mutant]:
    """Return every mutant of the rooms; references of kernels are for property tests."""
    found: list[Mutant] = []
    for room in ROOMS:
        for file in sorted((root / room).rglob("*.py")):
            if not file.name.endswith("_py.py"):
                path = str(file.relative_to(root))
                found += mutants_of(path, ast.parse(file.read_text()))
    return found


def drawn(mutants: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """Return those with the lowest hashes, in their order."""

    def rank(mutant: Mutant) -> bytes:
        return hashlib.sha256(f"{seed!r} {mutant.name}".encode()).digest()

    return sorted(mutants, key=rank)[:count]


def found_again(mutants: list[Mutant], lines: list[str]) -> list[Mutant | str]:
    """Return the mutants of an earlier output; the name of one that is gone.

    Where several have one name, the file says which, or else the first is taken.
    """
    by_name: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        by_name.setdefault(mutant.name, []).append(mutant)
    again: list[Mutant | str] = []
    for line in lines:
        _, _, path, name = line.rstrip("\n").split("\t", 3)
        same = sorted(by_name.get(name, ()), key=lambda mutant: mutant.path != path)
        again.append(same[0] if same else name)
    return again


class Copy:
    """A copy of the checkout, with its built kernels, in which one file at a time has a fault."""

    def __init__(self, place: Path) -> None:
        self.root = place / "tree"
        self.output = ""  # of the last run
        self._seconds: dict[str, float] = {}
        shutil.copytree(ROOT, self.root, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
        for room, tests in ROOMS.items():  # this compiles what is imported, too
            began = time.monotonic()
            if self._fail([tests], 3600, write_bytecode=True):
                sys.exit(f"{self.output}\n{tests} fails without a fault")
            self._seconds[room] = time.monotonic() - began

    def kills(self, mutant: Mutant) -> bool:
        """Say whether a test of the room fails; the file's own are asked first."""
        file = self.root / mutant.path
        text, stat = file.read_text(), file.stat()
        tree = ast.parse(text)
        next(same for same in mutants_of(mutant.path, tree) if same.name == mutant.name).plant()
        file.write_text(ast.unparse(ast.fix_missing_locations(tree)))
        room = next(room for room in ROOMS if mutant.path.startswith(f"{room}/"))
        timeout_s = 60 + 5 * self._seconds[room]
        own = Path("tests/unit", mutant.path).with_name(f"test_{file.name}")
        try:
            if (self.root / own).exists() and self._fail([str(own)], timeout_s):
                return True
            return self._fail([ROOMS[room]], timeout_s)
        finally:
            file.write_text(text)
            os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    def _fail(self, tests: list[str], timeout_s: float, *, write_bytecode: bool = False) -> bool:
        """Say whether tests fail; a single one has to fail twice, as one does on a busy machine."""
        ended, output = self._pytest(tests, timeout_s, write_bytecode)
        self.output = output
        failed = re.findall(r"^FAILED (\S+)", output, re.MULTILINE)
        if ended == FAILED and len(failed) == 1 and "[" not in failed[0]:
            ended, self.output = self._pytest(failed, timeout_s, write_bytecode)
        return ended != 0

    def _pytest(
        self, tests: list[str], timeout_s: float, write_bytecode: bool
    ) -> tuple[int | None, str]:
        """Return how a run of pytest ends, None if it does not in time, and its output."""
        environment = {**os.environ, "PYTHONPATH": str(self.root / "src")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        if not write_bytecode:  # what is cached may have the fault's size and second
            environment["PYTHONDONTWRITEBYTECODE"] = "1"
        with tempfile.TemporaryFile() as output:
            pytest = subprocess.Popen(
                [sys.executable, "-m", "pytest", *PYTEST_OPTIONS, *tests],
                cwd=self.root,
                env=environment,
                start_new_session=True,
                preexec_fn=_limit,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                ended: int | None = pytest.wait(timeout_s)
            except subprocess.TimeoutExpired:
                ended = None
            finally:  # what it has started ends with it
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pytest.pid, signal.SIGKILL)
                pytest.wait()
            output.seek(0)
            return ended, output.read().decode(errors="replace")


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=25)
    parser.add_argument("--again", type=Path, metavar="OUTPUT", help="those of an earlier run")
    parser.add_argument("--output", type=Path, help="a file for the lines")
    parser.add_argument("--list", action="store_true", help="draw them and try none")
    options = parser.parse_args()
    mutants = all_mutants(ROOT)
    chosen: list[Mutant | str] = (
        found_again(mutants, options.again.read_text().splitlines())
        if options.again
        else [*drawn(mutants, options.count, options.seed)]
    )
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        copied = None if options.list else Copy(Path(place))
        output = options.output.open("w") if options.output else None
        for mutant in chosen:
            began = time.monotonic()
            if isinstance(mutant, str):
                outcome, path, name = "gone", "-", mutant
            else:
                path, name = mutant.path, mutant.name
                outcome = "listed"
                if copied is not None:
                    outcome = "killed" if copied.kills(mutant) else "survived"
            outcomes[outcome] += 1
            line = f"{outcome}\t{time.monotonic() - began:.1f}\t{path}\t{name}"
            print(line, file=output or sys.stdout, flush=True)
        if output is not None:
            output.close()
    print(f"{len(mutants)} mutants; of {len(chosen)}: {dict(outcomes)}")  # noqa: T201  # its result


if __name__ == "__main__":
    main()
