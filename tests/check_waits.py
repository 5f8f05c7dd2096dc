#!/usr/bin/env python3
"""Refuses tests that wait for a number of seconds of their own, or that count the log lines of a daemon.

Such a test fails on a busy machine, whatever TaskD does. Python tests wait by tests/lib/deadlines.py, tests in C++ by
common/testing/deadline.h: both extend a bound while the machine is starved.

Refused in Python, below tests/ and deploy/quickstart/:
  * a number as the time of a wait: child.wait(60), timeout=60, connection.settimeout(5), thread.join(1), and the like; 0, which
    asks without waiting, may stand there;
  * a parameter `timeout` whose default is a number;
  * subprocess.run(..., timeout=...) and communicate(timeout=...) whatever the value: deadlines.run(), deadlines.communicate();
  * `assert` with <, <=, > or >= between a number and a count of lines: text.count("\\n"), len(text.splitlines()),
    len(lines_of(text)). A daemon on a starved machine logs more. Assert which lines are there; == 1 of a usage error is a
    promise of the product.
Refused in C++ tests: a number as the time of wait_for(), of set_deadline() or after now(), a second or more of poll(), and
constants kPatience.., kDeadline.., kLongEnough...

A short time that is itself the stimulus gets a named constant with a comment, and a slow machine may only let such a test pass.
A pause is time.sleep(2), not Event().wait(2). A parameter `timeout_s` may have any value: deadlines.py extends it. Code within
strings, as the ranks of a test, is not looked at; nor is a port that is closed and bound again: take it from lib/ports.py.

tests/check_waits.py [--root FOLDER]     exit 1 with a line for each wait and count that is refused
"""
import ast
import re
import sys

import checker

PYTHON_FOLDERS = ("tests", "deploy/quickstart")
PYTHON_HELPER = "tests/lib/deadlines.py"
CPP_HELPER = "common/testing/deadline.h"
SKIPPED = {"build", "node_modules", "__pycache__"}

# (file, a text of the line that is refused) -> why it may stay.
EXCEPTIONS = {
    ("tests/distros/scenario.py", "subprocess.run(command, env="): "runs in a root filesystem, without tests/lib",
    ("common/handshake_budget_test.cc", "kPatienceNs = 5'000 * kMs;"): "its clock is simulated",
    ("common/line_writer_test.cc", "Flush(steady_clock::now() + std::chrono::milliseconds(1))"): "a flush that gives up is the stimulus",
}

# Method -> places of its arguments that are a time.
TIMES = {"wait": (0,), "join": (0,), "result": (0,), "settimeout": (0,), "poll": (0,), "communicate": (1,), "select": (0, 3),
         "create_connection": (1,), "wait_for": (1,)}
SUBPROCESS = {"run", "call", "check_call", "check_output"}

IS_CPP_TEST = re.compile(r"_test\.cc$|(^|/)test_\w+\.h$|(^|/)testing/[^/]+$|^tests/integration/.*\.(cc|h)$")
DURATION = r"(?:std::)?(?:chrono::)?(?:seconds|minutes|milliseconds)\s*[({]\s*\d"
# Each is searched for in the whole text, since a statement may go on in the next line.
CPP_RULES = (
    (re.compile(r"\bwait_for\([^;]{0,200}?" + DURATION), "a number of seconds in wait_for()"),
    (re.compile(r"\bnow\(\)\s*\+\s*" + DURATION), "a number of seconds after now()"),
    (re.compile(r"\bset_deadline\([^;\n]*\d"), "a number in set_deadline()"),
    (re.compile(r"\bpoll\([^;\n]*,\s*\d{1,3}(?:'?\d{3})+\)"), "a number of milliseconds in poll()"),
    (re.compile(r"\bk(?:Patience|Deadline|LongEnough)\w*\s*[={]"), "a time of its own"),
)


def is_number(node):
    """Whether an expression is made of number literals alone, as 2 * 60 is; 0 is none: it does not wait."""
    def literal(part):
        if isinstance(part, ast.Constant):
            return isinstance(part.value, (int, float)) and not isinstance(part.value, bool)
        if isinstance(part, ast.BinOp):
            return literal(part.left) and literal(part.right)
        if isinstance(part, ast.IfExp):
            return literal(part.body) or literal(part.orelse)
        return isinstance(part, ast.UnaryOp) and literal(part.operand)
    return literal(node) and not (isinstance(node, ast.Constant) and node.value == 0)


def call_problems(node):
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if isinstance(node.func, ast.Attribute) or name in ("create_connection", "wait_for"):
        for place in TIMES.get(name, ()):
            if place < len(node.args) and is_number(node.args[place]):
                yield f"a number of seconds in {name}()"
    for keyword in node.keywords:
        if keyword.arg != "timeout":
            continue
        of_subprocess = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name) and node.func.value.id == "subprocess"
        if name == "communicate" or of_subprocess and name in SUBPROCESS:
            yield f"{name}() with a timeout that does not extend"
        elif is_number(keyword.value):
            yield "a number of seconds as timeout"


def parameter_problems(arguments):
    positional = arguments.posonlyargs + arguments.args
    pairs = list(zip(positional[len(positional) - len(arguments.defaults):], arguments.defaults))
    for parameter, default in pairs + list(zip(arguments.kwonlyargs, arguments.kw_defaults)):
        if parameter.arg == "timeout" and default is not None and is_number(default):
            yield "a number of seconds as the default of timeout"


def counts_lines(node):
    """text.count("\\n"), len(text.splitlines()) and len(lines_of_taskd(text))"""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute) and node.func.attr == "count":
        return len(node.args) == 1 and isinstance(node.args[0], ast.Constant) and node.args[0].value in ("\n", b"\n")
    if not (isinstance(node.func, ast.Name) and node.func.id == "len" and len(node.args) == 1 and isinstance(node.args[0], ast.Call)):
        return False
    counted = node.args[0].func
    return re.search(r"lines(_of_\w+)?$", counted.attr if isinstance(counted, ast.Attribute) else getattr(counted, "id", "")) is not None


def assert_problems(node):
    for part in ast.walk(node.test):
        if not isinstance(part, ast.Compare):
            continue
        values = [part.left, *part.comparators]
        for left, operator, right in zip(values, part.ops, values[1:]):
            if isinstance(operator, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
                if counts_lines(left) and isinstance(right, ast.Constant) or counts_lines(right) and isinstance(left, ast.Constant):
                    yield part.lineno, "a count of log lines: assert which lines are there"


def python_problems(text):
    """(line, why) of a Python file."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            yield from ((node.lineno, why) for why in call_problems(node))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from ((node.lineno, why) for why in parameter_problems(node.args))
        elif isinstance(node, ast.Assert):
            yield from assert_problems(node)


def cpp_problems(text):
    """(line, why) of a test in C++."""
    for rule, why in CPP_RULES:
        for match in rule.finditer(text):
            yield text.count("\n", 0, match.start()) + 1, why


def is_python_test(path):
    return path.endswith(".py") and path != PYTHON_HELPER and path.startswith(tuple(folder + "/" for folder in PYTHON_FOLDERS))


def rules_of(path):
    if is_python_test(path):
        return python_problems
    return cpp_problems if IS_CPP_TEST.search(path) and path != CPP_HELPER else None


def check(root, exceptions=None):
    return checker.refused(root, SKIPPED, rules_of, EXCEPTIONS if exceptions is None else exceptions)


if __name__ == "__main__":
    sys.exit(checker.main(__doc__, check, "every test waits by the shared deadlines, and none counts log lines"))
