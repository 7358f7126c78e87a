"""Our own error is found in what Spark makes of it."""

from __future__ import annotations

from motelog.spark.errors import OptionError, our_sentence

REPORT = """[PYTHON_DATA_SOURCE_ERROR] Failed to generate: Traceback (most recent call last):
  File "source.py", line 134, in partitions
    queues = view.queues(is_known=False)
motelog.spark.errors.OptionError: option 'topic' is 'nosuch', expected a topic that exists
 SQLSTATE: 38000"""


def test_the_sentence_is_taken_out_of_the_report() -> None:
    found = our_sentence(RuntimeError(REPORT))
    assert found == "option 'topic' is 'nosuch', expected a topic that exists"


def test_other_errors_stay_as_they_are() -> None:
    assert our_sentence(RuntimeError("out of memory")) == "out of memory"
    ours = OptionError("topic", "a", "a topic")
    assert our_sentence(ours) == "option 'topic' is 'a', expected a topic"
