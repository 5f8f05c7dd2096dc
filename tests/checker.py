"""What the check_*.py scripts share: an option, a table of exceptions, and what is printed."""
import argparse
import os


def refused(root, skipped, rules_of, exceptions):
    """Messages for lines that no exception covers, and for exceptions that cover no line.

    `rules_of(path)`: a function that yields (number, why) for the text of that file; None: the file is not checked. Folders of
    the names `skipped` are left out. `exceptions`: a set or dictionary of (path, a text of the line).
    """
    problems, unused = [], set(exceptions)
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in skipped and not f.startswith("."))
        for name in sorted(names):
            path = os.path.relpath(os.path.join(folder, name), root)
            rules = rules_of(path)
            if rules is None:
                continue
            with open(os.path.join(root, path), encoding="utf-8") as file:
                text = file.read()
            lines = text.splitlines()
            for number, why in sorted(set(rules(text))):
                allowed = {one for one in exceptions if one[0] == path and one[1] in lines[number - 1]}
                unused -= allowed
                if not allowed:
                    problems.append(f"{path}:{number}: {why}")
    return problems + [f"{path}: no line with {text!r} is refused: the table need not allow it" for path, text in sorted(unused)]


def main(description, check, all_is_well):
    """Prints what `check(root)` finds, or that all is well, and returns the exit code."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    problems = check(parser.parse_args().root)
    print("\n".join(problems) if problems else all_is_well)
    return 1 if problems else 0
