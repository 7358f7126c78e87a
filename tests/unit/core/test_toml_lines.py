"""Lines of keys, as a person counts them in the file."""

from __future__ import annotations

from motelog.core.toml_lines import find_lines


def test_lines_are_found_through_multi_line_values() -> None:
    text = '''a = """
[not.a.table]
b = 1
"""
c = [
  "x = 1", # ]
  { d = 2 },
]
"e.f".g = 1 # comment = 1
[h]
i.j = """one line"""
k = \'\'\'
l = 1\'\'\'
m = "[["
[[n.o]]
p = 1
[[n.o]]
[n.o.q]
r = 1
'''
    lines = find_lines(text)
    assert lines[("a",)] == 1
    assert ("not", "a", "table") not in lines
    assert lines[("c",)] == 5
    assert lines[("e.f", "g")] == 9
    assert lines[("h", "i")] == lines[("h", "i", "j")] == 11
    assert lines[("h", "k")] == 12
    assert lines[("h", "m")] == 14
    assert lines[("n", "o", 0, "p")] == 16
    assert lines[("n", "o", 1)] == 17
    assert lines[("n", "o", 1, "q", "r")] == 19
    assert not any("l" in path or "x" in path for path in lines)
