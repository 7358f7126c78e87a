"""Options of jobs: the command line, and files of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from motelog.spark.errors import JobUsageError
from motelog.spark.jobs.device_minutes_options import parser
from motelog.spark.run import JOBS
from motelog.spark.run import parser as parser_of


def test_a_file_has_options_and_the_command_line_counts_more(tmp_path: Path) -> None:
    conf = tmp_path / "job.toml"
    conf.write_text('topic = "fleet"\noutput = "o"\ncheckpoint = "c"\nonce = true\n')
    found = parser().parse([f"--conf={conf}", "--topic", "other"])
    assert (found.topic, found.output, found.checkpoint, found.once) == ("other", "o", "c", True)
    conf.write_text('output = "o"\ncheckpoint = "c"\nonce = false\ninterval = 3\n')
    found = parser().parse(["--conf", str(conf)])
    assert (found.once, found.interval) == (False, 3)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("outptu = 'o'", "'outptu' is not an option of the job"),
        ("help = true", "'help' is not an option of the job"),
        ("output = ['o']", "'output' must have one value"),
        ("output", "job.toml: "),
        ("interval = 0", "'0' is not a number of seconds"),
    ],
)
def test_what_is_wrong_in_a_file_is_said(tmp_path: Path, text: str, why: str) -> None:
    conf = tmp_path / "job.toml"
    conf.write_text(text)
    with pytest.raises(JobUsageError, match=why):
        parser().parse([f"--conf={conf}", "--output=o", "--checkpoint=c"])
    with pytest.raises(JobUsageError, match="No such file"):
        parser().parse([f"--conf={tmp_path / 'none'}", "--output=o", "--checkpoint=c"])


def test_every_job_has_the_common_options() -> None:
    for name in JOBS:
        made = parser_of(name)
        assert made.prog == f"motelog spark run {name}"
        assert {"--conf", "--topic", "--checkpoint", "--once"} <= {
            text for action in made._actions for text in action.option_strings
        }


def test_a_job_does_not_write_to_the_topic_that_it_reads() -> None:
    for name, option in (("device-alerts", "alerts"), ("dead-letters", "good")):
        argv = ["--checkpoint=c", "--topic=fleet", f"--{option}"]
        assert parser_of(name).parse([*argv, "others"]).topic == "fleet"
        with pytest.raises(JobUsageError, match=f"argument --{option}: 'fleet' is the topic read"):
            parser_of(name).parse([*argv, "fleet"])
