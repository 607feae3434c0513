"""An option of which only the last value would count is not given twice."""

import pytest

from simcse_cli.commands.app import build
from simcse_cli.errors import UsageError


def leaves(command, *path):
    if hasattr(command, "commands"):
        for name, child in command.commands.items():
            yield from leaves(child, *path, name)
    else:
        yield path, command


COMMANDS = dict(leaves(build()))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_option_is_refused_or_adds_up(path):
    for option in COMMANDS[path].params:
        takes_one = option.param_type_name == "option" and not option.multiple
        if not takes_one or option.name in ("help", "help_all", "quiet", "verbose"):
            continue
        if "--columns" in option.opts:  # the last one counts, so that a fix can be added
            continue
        flag = max(option.opts, key=len)
        if not option.is_flag:
            words = (flag, "1", flag, "2")
        elif option.secondary_opts:
            words = (flag, option.secondary_opts[0])
        else:
            continue
        with pytest.raises(UsageError, match=f"{flag}: is given 2 times and takes one value"):
            COMMANDS[path].make_context(path[-1], list(words))


def test_a_repeated_option_is_wrong_usage(invoke):
    outcome = invoke("encode", "--model", "a", "--model", "b")
    assert outcome.exit_code == 2
    assert "--model: is given 2 times and takes one value" in outcome.stderr


def test_several_values_and_plain_flags_may_be_repeated(invoke, tmp_path):
    (tmp_path / "a.txt").write_text("A dog runs.\nA dog runs.\n")
    out = tmp_path / "out.txt"
    outcome = invoke("prepare", "sentences", tmp_path / "a.txt", "-o", out, "--force", "--force")
    assert outcome.exit_code == 0, outcome.stderr
