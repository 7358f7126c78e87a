"""Writes the clients for plain threads and for asyncio from those for trio.

Owns: the text of ``bridge/sync.py`` and ``bridge/asyncio.py``: their signatures and docstrings are
those of the native classes, and each method calls the native one. Must not touch: how a call gets
into trio's thread; that is written by hand, in ``bridge/sync_base.py`` and
``bridge/asyncio_base.py``.

    python -m tests.twins

A base ``NAMEBase`` in these modules is taken where there is one: for class NAME it has methods that
trio's class does not have, and ``_method`` for a method that does more than to call. A type that
they define (``HandleOne``) takes the place of the native one of the same name.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Final, TypeAlias

from tests.support.repository import ROOT

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

#: The native classes and their modules, in the order in which the twins stand.
SOURCES: Final = {
    "Producer": "bridge/producer.py",
    "TransactionProducer": "bridge/transactions.py",
    "PullConsumer": "bridge/pull.py",
    "PushConsumer": "bridge/push/consumer.py",
    "SimpleConsumer": "bridge/simple.py",
    "Admin": "bridge/admin.py",
}
#: What a twin calls, where that is not the class whose signatures and docstrings it has.
SERVICES: Final = {"PullConsumer": ("LoopedPullConsumer", "bridge/unseen.py")}
#: Methods whose code is taken over: they call the user's function between two calls.
COPIED: Final = {"send_in_transaction"}
#: Methods whose arguments may be more than memory holds. Other iterables are read by the caller,
#: since what they run may call the client.
LAZY: Final = {"send_batches"}
#: Arguments that are functions of the user and are called for the whole life of the client.
WRAPPED: Final = {"check"}
#: Batches by queue and what is uncommitted are for the twins themselves, the address of a broker is
#: for Spark's readers.
_INTERNAL: Final = frozenset({"poll_batches", "uncommitted", "broker_address"})

#: What the thread of a client is called.
_KINDS: Final = ("producer", "consumer", "admin")
_LINE: Final = 100


@dataclass(frozen=True)
class Form:
    """What makes the clients for one kind of program."""

    path: str
    prefix: str
    opening: str
    base: str
    #: (pattern, what takes its place) in docstrings.
    words: tuple[tuple[str, str], ...]
    left_out: dict[str, frozenset[str]]
    #: What the docstring of a class, or of "Class.method", says besides.
    notes: dict[str, str]
    classes: tuple[str, ...] = tuple(SOURCES)
    is_async: bool = False

    @property
    def base_path(self) -> str:
        return self.path.replace(".py", "_base.py")


SYNC: Final = Form(
    path="bridge/sync.py",
    prefix="Sync",
    base="Blocking",
    opening="The clients for programs with plain threads, such as Spark workers: each call blocks.",
    words=(
        (r"await ``execute", "call ``execute"),
        (r"``async (with|for) ", r"``\1 "),
        (r"``await ", "``"),
        (r"an ``async def`` or a plain function, which runs in threads", "called in threads"),
        (r"any number of (topics and )?tasks", r"any number of \1threads"),
        (r", or until cancelled\.", ", ``close`` or Ctrl-C."),
        (r"Any thread may call it\.", "Another thread or ``handle`` calls it."),
    ),
    left_out={"PullConsumer": _INTERNAL},
    notes={
        "TransactionProducer": "``check`` is a plain function. It is called in threads of its own, "
        "``check_tasks`` at a time.",
        "TransactionProducer.send_in_transaction": "``execute`` runs in the calling thread.",
    },
)
ASYNCIO: Final = Form(
    path="bridge/asyncio.py",
    prefix="Asyncio",
    base="OnAsyncio",
    opening="The clients for programs that run asyncio.",
    words=(
        (r"``consumer\.subscribe\(", "``await consumer.subscribe("),
        (r"Any thread may call it\.", ""),
        (r"\ba (Producer)\b", r"an \1"),
    ),
    left_out={"PullConsumer": _INTERNAL | {"pull"}},  # a poll is enough
    notes={
        "Producer.send": "A message whose send was cancelled may be stored or not.",
        "TransactionProducer": "``check`` is a coroutine function and runs on the loop, "
        "``check_tasks`` calls at a time.",
        "TransactionProducer.send_in_transaction": "``execute`` is awaited on the loop.",
        "PullConsumer": "Every method is awaited.",
        "PullConsumer.poll": "What a cancelled call had taken is handed out by the next one.",
        "PushConsumer": "Every method is awaited. An ``async def`` runs on the loop that called "
        "``run``; one that is still running when ``stop_s`` is over is cancelled.",
        "SimpleConsumer": "Messages of a cancelled ``receive`` come again when their time is over.",
    },
    classes=tuple(SOURCES)[:-1],
    is_async=True,
)
FORMS: Final = (SYNC, ASYNCIO)


class Module:
    """What is known of a source file: its classes, and where each of its names comes from."""

    def __init__(self, path: str) -> None:
        self.name = "motelog." + path.removesuffix(".py").replace("/", ".")
        body = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
        self.classes = {one.name: one for one in body if isinstance(one, ast.ClassDef)}
        #: What is defined here, without imports.
        self.own: set[str] = set(self.classes)
        #: Name -> the module that it is imported from, or this one if it is defined here.
        self.origins: dict[str, str] = {}
        for one in body:
            if isinstance(one, ast.ImportFrom) and one.module:
                self.origins |= {alias.name: one.module for alias in one.names}
            elif isinstance(one, ast.FunctionDef):
                self.own.add(one.name)
            elif isinstance(one, ast.Assign | ast.AnnAssign):
                targets = one.targets if isinstance(one, ast.Assign) else [one.target]
                self.own |= {to.id for to in targets if isinstance(to, ast.Name)}
        self.origins |= dict.fromkeys(self.own, self.name)

    def methods(self, name: str) -> dict[str, Function]:
        found = self.classes[name].body if name in self.classes else []
        return {one.name: one for one in found if isinstance(one, Function)}


@cache
def module(path: str) -> Module:
    return Module(path)


def text_of(form: Form) -> str:
    """Return the file of one form."""
    return Twins(form).text()


@dataclass
class Twins:
    """One file that is written."""

    form: Form
    #: Module -> the names that are imported from it.
    imports: dict[str, set[str]] = field(default_factory=dict)

    @cached_property
    def base(self) -> Module:
        return module(self.form.base_path)

    def text(self) -> str:
        classes = [line for name in self.form.classes for line in self._class(name)]
        opening = f'''"""{self.form.opening}

Written by ``python -m tests.twins`` from the classes for trio: do not edit.
Owns: nothing; each method calls the native one of its name. Must not touch: threads and loops
({self.base.name}).
"""'''
        imports = [
            f"from {origin} import {', '.join(sorted(names))}"
            for origin, names in self.imports.items()
        ]
        lines = [opening, "from __future__ import annotations", *imports, *classes]
        return _formatted("\n".join(lines) + "\n", self.form.path)

    def _class(self, name: str) -> Iterator[str]:
        source = module(SOURCES[name])
        service, path = SERVICES.get(name, (name, SOURCES[name]))
        self._need(service, module(path))
        parents = [base.id for base in source.classes[name].bases if isinstance(base, ast.Name)]
        if parents:
            bases = self.form.prefix + parents[0]
        elif f"{name}Base" in self.base.classes:
            bases = self._need(f"{name}Base", self.base)
        else:
            bases = f"{self._need(self.form.base, self.base)}[{service}]"
        yield f"class {self.form.prefix}{name}({bases}):"
        yield self._docstring(name, source.classes[name], indent=4)
        if parents:
            yield f"    _service: {service}"
        yield from self._init(name, service, source)
        for method in source.methods(name).values():
            left_out = self.form.left_out.get(name, frozenset())
            if not method.name.startswith("_") and method.name not in left_out:
                yield from self._method(name, method, source)

    def _init(self, name: str, service: str, source: Module) -> Iterator[str]:
        """Yield a constructor with the arguments of the native one, which it makes."""
        method = deepcopy(source.methods(name)["__init__"])
        if method.args.kwarg is not None:  # those of the class above
            parent = module(SOURCES["Producer"])
            shared = parent.methods("Producer")["__init__"].args
            method.args.kwonlyargs += shared.kwonlyargs
            method.args.kw_defaults += shared.kw_defaults
            method.args.kwarg = None
            self._names(shared, parent)
        yield self._signature(method, source, is_async=False)
        arguments = self._arguments(method)
        kind = next(one for one in _KINDS if name.lower().endswith(one))
        has_group = any(one.arg == "group" for one in method.args.kwonlyargs)
        thread = f'f"motelog-{kind}-{{group}}"' if has_group else f'"motelog-{kind}"'
        above = "super().__init__("
        if source.classes[name].bases:  # a class that is written, and would make the other native
            above = f"{self._need(self.form.base, self.base)}.__init__(self, "
        yield f"        {above}{service}({arguments}), {thread})"

    def _method(self, name: str, method: Function, source: Module) -> Iterator[str]:
        is_property = any(
            isinstance(one, ast.Name) and one.id == "property" for one in method.decorator_list
        )
        if is_property and not self.form.is_async:
            yield "    @property"
        yield self._signature(method, source, is_async=self.form.is_async)
        yield self._docstring(f"{name}.{method.name}", method, indent=8)
        yield from self._body(name, method, source, is_property=is_property)

    def _body(
        self, name: str, method: Function, source: Module, *, is_property: bool
    ) -> Iterator[str]:
        wait = "await " if self.form.is_async else ""
        if method.name in COPIED:
            for line in map(ast.unparse, method.body[1:]):
                yield textwrap.indent(line if wait else line.replace("await ", ""), " " * 8)
            for statement in method.body[1:]:
                self._names(statement, source)
            return
        give = "" if ast.unparse(method.returns or ast.Constant(None)) == "None" else "return "
        arguments = self._arguments(method)
        if f"_{method.name}" in self.base.methods(f"{name}Base"):
            yield f"        {give}{wait}self._{method.name}({arguments})"
            return
        call = "_call" if isinstance(method, ast.AsyncFunctionDef) else "_call_sync"
        called = f"{'lambda: ' * is_property}self._service.{method.name}"
        yield f"        {give}{wait}self.{call}({', '.join(filter(None, (called, arguments)))})"

    def _signature(self, method: Function, source: Module, *, is_async: bool) -> str:
        self._names(method.args, source)
        if method.returns is not None:
            self._names(method.returns, source)
        returns = ast.unparse(method.returns or ast.Constant(None))
        define = "async def" if is_async else "def"
        return f"    {define} {method.name}({ast.unparse(method.args)}) -> {returns}:"

    def _arguments(self, method: Function) -> str:
        """Return the arguments of a call that hands on all that ``method`` is given."""
        is_lazy = method.name in LAZY
        given = [_passed(one, is_lazy=is_lazy) for one in method.args.args[1:]]
        named = [f"{one.arg}={_passed(one, is_lazy=is_lazy)}" for one in method.args.kwonlyargs]
        return ", ".join(given + named)

    def _names(self, node: ast.AST, source: Module) -> None:
        """Import what is named below ``node``."""
        for one in ast.walk(node):
            if isinstance(one, ast.Name) and one.id in source.origins:
                self._need(one.id, self.base if one.id in self.base.own else source)

    def _need(self, name: str, source: Module) -> str:
        origin = source.origins[name]
        others = [one for one, names in self.imports.items() if name in names and one != origin]
        if others:
            raise ValueError(f"two names are the same: {name} of {origin} and of {others[0]}")
        self.imports.setdefault(origin, set()).add(name)
        return name

    def _docstring(self, name: str, node: ast.ClassDef | Function, *, indent: int) -> str:
        text = ast.get_docstring(node) or ""
        assert text, f"{name} has no docstring"
        paragraphs = [self._reworded(one, _LINE - indent) for one in text.split("\n\n")]
        if note := self.form.notes.get(name):
            paragraphs.append(textwrap.fill(note, _LINE - indent))
        if len(paragraphs[0]) > _LINE - indent - len('"""' * (1 + (len(paragraphs) == 1))):
            raise ValueError(f"the first line for {name} gets too long: {paragraphs[0]}")
        text = "\n\n".join(filter(None, paragraphs))
        return textwrap.indent(f'"""{text}' + ('\n"""' if "\n" in text else '"""'), " " * indent)

    def _reworded(self, paragraph: str, width: int) -> str:
        text = paragraph
        for pattern, word in self.form.words:
            text = re.sub(pattern.replace(" ", r"\s+"), word, text)
        names = "|".join(self.form.classes)
        text = re.sub(rf"(?<![\w.%])({names})\b(?!\w)", rf"{self.form.prefix}\1", text)
        if text == paragraph:
            return text
        return textwrap.fill(
            " ".join(text.split()), width, break_long_words=False, break_on_hyphens=False
        )


def _passed(argument: ast.arg, *, is_lazy: bool) -> str:
    name = argument.arg
    kind = ast.unparse(argument.annotation or ast.Constant(None))
    if name in WRAPPED:
        return f"self._as_async({name})"
    if is_lazy or not kind.startswith("Iterable["):
        return name
    return f"None if {name} is None else tuple({name})" if "| None" in kind else f"tuple({name})"


def _formatted(text: str, path: str) -> str:
    for arguments in (["check", "--select", "I", "--fix"], ["format"]):
        command = [sys.executable, "-m", "ruff", *arguments, "-q", "--stdin-filename", path, "-"]
        done = subprocess.run(command, input=text, cwd=ROOT, capture_output=True, text=True)
        done.check_returncode()
        text = done.stdout
    return text


def main() -> None:
    for form in FORMS:
        (ROOT / form.path).write_text(text_of(form), encoding="utf-8")


if __name__ == "__main__":
    main()
