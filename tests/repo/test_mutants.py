"""The faults of tests/mutants.py: what there is to plant, and under which names."""

from __future__ import annotations

import ast

from tests.mutants import Mutant, drawn, found_again, mutants_of

TEXT = '''
LIMIT = 3

class Window:
    """What is in flight."""

    def is_full(self, more: int = 1) -> bool:
        """Say so."""
        if self.count + more >= LIMIT and not self.is_open:
            self.note(True)
        return False
'''


def found() -> list[Mutant]:
    return list(mutants_of("gateway/window.py", ast.parse(TEXT)))


def planted(name: str) -> str:
    tree = ast.parse(TEXT)
    next(one for one in mutants_of("gateway/window.py", tree) if one.name == name).plant()
    return ast.unparse(ast.fix_missing_locations(tree))


def test_each_fault_is_named_by_function_and_statement() -> None:
    test = "Window.is_full: if self.count + more >= LIMIT and (not self.is_open):"
    assert [one.name for one in found()] == [
        f"{test}: negated #1",
        f"{test}: And to Or #1",
        f"{test}: GtE to Gt #1",
        f"{test}: Add to Sub #1",
        "Window.is_full: self.note(True): deleted #1",
        "Window.is_full: self.note(True): True to False #1",
        "Window.is_full: return False: False to True #1",
    ]


def test_a_fault_is_planted_where_its_name_says() -> None:
    changed = planted("Window.is_full: self.note(True): deleted #1")
    assert changed == ast.unparse(ast.parse(TEXT)).replace("self.note(True)", "pass")
    assert "self.note(False)" in planted("Window.is_full: self.note(True): True to False #1")


def test_the_same_are_drawn_while_their_functions_stay() -> None:
    mutants = found()
    chosen = drawn(mutants, 3, 25)
    assert [one.name for one in drawn([*reversed(mutants)], 3, 25)] == [one.name for one in chosen]
    lines = [f"killed\t1.0\tgateway/old.py\t{one.name}\n" for one in chosen]
    assert found_again(mutants, lines) == chosen
    assert found_again([], lines) == [one.name for one in chosen]
