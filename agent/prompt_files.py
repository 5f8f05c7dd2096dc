"""Writes completion for bash, zsh and fish, and man pages, from what `taskd --help --json` prints. Runs in the build.

python3 prompt_files.py LIST.json FOLDER      FOLDER is a share/ folder: bash-completion/completions, zsh/site-functions,
                                              fish/vendor_completions.d, man/man1
"""
import json
import os
import re
import shlex
import sys

SHORT = 100  # bytes of a help text that a list of options shows


def short(text):
    """A help text for a list: its first clause."""
    text = re.split(r"[;:] ", text)[0]
    return text if len(text) <= SHORT else text[:SHORT - 3].rstrip() + "..."


def longest(option):
    return option["names"][-1]


def takes_value(option):
    """Whether the next word is its value. `--x[=true|false]` takes one behind its own `=` only."""
    return "value" in option and not option["value"].startswith("[")


def names_of(options, wanted=lambda option: True):
    return " ".join(name for option in options if wanted(option) for name in option["names"])


# ---- bash

BASH = r"""# Completion of taskd and torch_npu_run for bash 4 and newer. Made by the build from `taskd --help --json`.
_taskd() {
  local cur=$2 words=("${COMP_WORDS[@]:1:COMP_CWORD-1}") command= subs options values choices option= word skip=
  COMPREPLY=()
  [[ ${1##*/} == torch_npu_run ]] && words=(run "${words[@]}")
  # bash splits --option=value into three words: --option, = and value.
  [[ $cur == = ]] && cur=
  _taskd_command ''
  for word in "${words[@]}"; do
    [[ $word == = ]] && { [[ -n $option ]] && skip=1; continue; }
    if [[ -n $skip ]]; then skip= option=; continue; fi
    option=
    case $word in
      --) [[ $command == run ]] && return ;;
      -*)
        option=${word//_/-}
        [[ " $values " == *" $option "* ]] && skip=1
        ;;
      *)
        if [[ -n $subs ]]; then
          _taskd_command "${command:+$command }$word"
          command=${command:+$command }$word
        elif [[ $command == run ]]; then
          return  # this and all that follows is the training program's line
        fi
        ;;
    esac
  done
  if [[ -n $skip || ( -n $option && ${COMP_WORDS[COMP_CWORD-1]} == = ) || $2 == = ]]; then
    _taskd_choices "$command $option"
    COMPREPLY=($(compgen -W "$choices" -- "$cur"))
  elif [[ $cur == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$cur"))
  elif [[ -n $subs ]]; then
    COMPREPLY=($(compgen -W "$subs" -- "$cur"))
  fi
}
# Sets subs, options and values: the words and options that may follow command $1, and the options that take a value.
_taskd_command() {
  subs= options='--help' values=
  case $1 in
@COMMANDS@
  esac
}
_taskd_choices() {
  choices=
  case $1 in
@CHOICES@
  esac
}
complete -o default -o bashdefault -F _taskd taskd torch_npu_run
"""
BASH_LINK = """# The same as for taskd.
. "${BASH_SOURCE[0]%/*}/taskd"
"""


def subcommands(commands):
    """{"": ["run", ..., "rdma"], "rdma": ["env", "check"]}"""
    below = {}
    for command in commands:
        first, _, second = command["name"].partition(" ")
        for parent, word in (("", first), (first, second)):
            if word and word not in below.setdefault(parent, []):
                below[parent].append(word)
    return {parent: words for parent, words in below.items() if words}


def bash(listed):
    cases, choices = [], []
    for parent, words in subcommands(listed["commands"]).items():
        options = "--help --version" if not parent else "--help"
        cases.append(f"    {shlex.quote(parent)}) subs={shlex.quote(' '.join(words))} options={shlex.quote(options)} ;;")
    for command in listed["commands"]:
        options = command["options"]
        cases.append(f"    {shlex.quote(command['name'])}) options={shlex.quote(names_of(options) or '--help')}"
                     f" values={shlex.quote(names_of(options, takes_value))} ;;")
        for option in options:
            if "choices" in option:
                pattern = "|".join(f"'{command['name']} {name}'" for name in option["names"])
                choices.append(f"    {pattern}) choices={shlex.quote(' '.join(option['choices']))} ;;")
    return BASH.replace("@COMMANDS@", "\n".join(cases)).replace("@CHOICES@", "\n".join(choices))


# ---- zsh

ZSH = """#compdef taskd torch_npu_run
# Completion of taskd and torch_npu_run for zsh. Made by the build from `taskd --help --json`.
_taskd() {
  local curcontext=$curcontext state line
  local -a commands
  typeset -A opt_args
  if [[ $service == torch_npu_run ]]; then
    _taskd_run
    return
  fi
  commands=(
@WORDS@
  )
  _arguments -C '(-)'{-h,--help}'[print the help text]' '(-)--version[print the version]' '1:command:->command' '*::argument:->argument'
  case $state in
    command) _describe command commands ;;
    argument)
      case $words[1] in
@CASES@
      esac
      ;;
  esac
}
@FUNCTIONS@
_taskd "$@"
"""


def zsh_text(text):
    return re.sub(r"([\[\]:\\'`$])", lambda match: "'\\''" if match[1] == "'" else "\\" + match[1], text)


def zsh_spec(option, many):
    value = ""
    if "value" in option:
        what = ("(" + " ".join(option["choices"]) + ")") if "choices" in option else "_files"
        value = ("::" if option["value"].startswith("[") else ":") + zsh_text(option["value"].strip("[]=")) + ":" + what
    sign = "=" if "value" in option else ""
    once = "*" if many or option.get("many") else ""
    for name in option["names"]:
        mark = sign if name.startswith("--") else ("+" if sign else "")
        others = " ".join(option["names"])
        exclusive = f"({others})" if not once else once
        optional = "-" if option.get("value", "").startswith("[") and name.startswith("--") else ""
        yield f"'{exclusive}{name}{'=' + optional if mark == '=' else mark}[{zsh_text(short(option['help']))}]{value}'"


def function_of(name):
    return "_taskd_" + re.sub(r"\W", "_", name)


def zsh(listed):
    below = subcommands(listed["commands"])
    helps = {command["name"]: command["help"] for command in listed["commands"]}
    words = "\n".join(f"    '{word}:{zsh_text(helps.get(word, ' or '.join(below.get(word, []))))}'" for word in below[""])
    cases = "\n".join(f"        {word}) {function_of(word)} ;;" for word in below[""])
    functions = []
    for parent in filter(None, below):
        inner = "\n".join(f"    {word}) shift words; (( CURRENT-- )); {function_of(parent + ' ' + word)} ;;" for word in below[parent])
        functions.append(f"{function_of(parent)}() {{\n  if (( CURRENT == 2 )); then\n    compadd {' '.join(below[parent])}\n    return\n"
                         f"  fi\n  case $words[2] in\n{inner}\n  esac\n}}")
    for command in listed["commands"]:
        specs = [spec for option in command["options"] for spec in zsh_spec(option, False)]
        # Everything behind the first word of `taskd run` and `taskd rsh` is another program's line.
        rest = "'(-)1:program:_files' '*:argument:_files'" if "text" in command else "'*:argument:_files'"
        functions.append(f"{function_of(command['name'])}() {{\n  _arguments \\\n" + "".join(f"    {spec} \\\n" for spec in specs) +
                         f"    {rest}\n}}")
    return ZSH.replace("@WORDS@", words).replace("@CASES@", cases).replace("@FUNCTIONS@", "\n".join(functions))


# ---- fish

def fish_text(text):
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def fish(listed):
    below = subcommands(listed["commands"])
    helps = {command["name"]: command["help"] for command in listed["commands"]}
    lines = ["# Completion of taskd and torch_npu_run for fish. Made by the build from `taskd --help --json`.",
             "complete -c torch_npu_run -w 'taskd run'",
             "complete -c taskd -n __fish_use_subcommand -l version -d 'print the version'",
             "complete -c taskd -s h -l help -d 'print the help text'"]
    for word in below[""]:
        lines.append(f"complete -c taskd -f -n __fish_use_subcommand -a {word} -d {fish_text(helps.get(word, ' or '.join(below.get(word, []))))}")
    for parent in filter(None, below):
        condition = f"__fish_seen_subcommand_from {parent}; and not __fish_seen_subcommand_from {' '.join(below[parent])}"
        lines += [f"complete -c taskd -f -n {fish_text(condition)} -a {word} -d {fish_text(helps[parent + ' ' + word])}" for word in below[parent]]
    for command in listed["commands"]:
        condition = fish_text("; and ".join(f"__fish_seen_subcommand_from {word}" for word in command["name"].split()))
        for option in command["options"]:
            if longest(option) == "--help":
                continue
            line = f"complete -c taskd -n {condition}"
            for name in option["names"]:
                line += f" -l {name[2:]}" if name.startswith("--") else f" -s {name[1:]}"
            if takes_value(option):
                line += " -r"
            if "choices" in option:
                line += f" -f -a {fish_text(' '.join(option['choices']))}"
            lines.append(f"{line} -d {fish_text(short(option['help']))}")
    return "\n".join(lines) + "\n"


# ---- man

def roff(text):
    """Text that troff prints as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga").replace("^", "\\(ha").replace("~", "\\(ti")
    return re.sub(r"^\.", r"\\&.", text, flags=re.M)


def title(name, listed, what):
    page = ("taskd " + name).strip().replace(" ", "-")
    return (f'.TH "{page.upper()}" 1 "" "taskd {listed["version"]}" "User Commands"\n.SH NAME\n{roff(page)} \\- {roff(what)}\n')


def man_option(option):
    value = option.get("value", "")
    shown = ", ".join(f"\\fB{roff(name)}\\fR" for name in option["names"])
    if value:
        shown += (" " if not value.startswith("[") else "") + f"\\fI{roff(value)}\\fR"
    facts = [f"default: {option['default']}"] if "default" in option else []
    facts += [f"environment: {', '.join(option['environment'])}"] if "environment" in option else []
    facts += ["required"] if option.get("required") else []
    facts += ["may be repeated"] if option.get("many") else []
    text = option["help"] + (f" ({'; '.join(facts)})" if facts else "")
    return f".TP\n{shown}\n{roff(text)}\n"


SEE_ALSO = ".SH SEE ALSO\n\\fBtaskd\\fR(1)\n"
EXIT = """.SH EXIT STATUS
0: done. 1: failed. 2: wrong usage or configuration; one line says what, the value and the rule, and nothing was started.
"""


def man_page(command, listed):
    page = title(command["name"], listed, command["help"])
    if "text" in command:  # its own help says it all
        return page + f".SH DESCRIPTION\n.nf\n{roff(command['text'].rstrip())}\n.fi\n" + SEE_ALSO
    arguments = "".join(f" {'' if one.get('required') else '['}\\fI{roff(one['name'])}\\fR{'...' if one.get('many') else ''}"
                        f"{'' if one.get('required') else ']'}" for one in command["arguments"])
    page += f".SH SYNOPSIS\n\\fBtaskd {roff(command['name'])}\\fR [\\fIOPTIONS\\fR]{arguments}\n"
    if command["arguments"]:
        page += ".SH ARGUMENTS\n" + "".join(f".TP\n\\fI{roff(one['name'])}\\fR\n{roff(one['help'])}\n" for one in command["arguments"])
    return page + ".SH OPTIONS\n" + "".join(map(man_option, command["options"])) + EXIT + SEE_ALSO


def man(listed):
    overview = title("", listed, "records what a distributed training job does, and names its slow node")
    overview += (".SH SYNOPSIS\n\\fBtaskd\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n.br\n\\fBtaskd \\-\\-help \\-\\-json\\fR\n"
                 ".SH DESCRIPTION\nTaskD starts, watches and restarts the ranks of a training job, records what each rank does, switches that\n"
                 "recording on and off while training runs, and says which node is slow.\n.SH COMMANDS\n")
    for command in listed["commands"]:
        overview += f".TP\n\\fBtaskd\\-{roff(command['name'].replace(' ', '-'))}\\fR(1)\n{roff(command['help'])}\n"
    overview += ".SH ENVIRONMENT\nEach option \\fB\\-\\-some\\-option\\fR of a command is also read from \\fBTASKD_SOME_OPTION\\fR; the command line wins.\n" + EXIT
    yield "taskd.1", overview
    for command in listed["commands"]:
        yield f"taskd-{command['name'].replace(' ', '-')}.1", man_page(command, listed)


def files(listed):
    yield "bash-completion/completions/taskd", bash(listed)
    yield "bash-completion/completions/torch_npu_run", BASH_LINK
    yield "zsh/site-functions/_taskd", zsh(listed)
    yield "fish/vendor_completions.d/taskd.fish", fish(listed)
    for name, text in man(listed):
        yield f"man/man1/{name}", text


def main(path, folder):
    with open(path, encoding="utf-8") as file:
        listed = json.load(file)
    for name, text in files(listed):
        os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
